"""How large a row of DynamoDB is, by the service's rules."""

from __future__ import annotations


def item_bytes(item):
    """The size of a row by DynamoDB's rules."""
    return sum(len(name.encode()) + value_bytes(value) for name, value in item.items())


def value_bytes(value):
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "N":
            return (len(content.strip("-")) + 1) // 2 + 1
        case "B":
            return len(content)
        case "SS":
            return sum(len(each.encode()) for each in content)
        case "M":
            return 3 + sum(1 + len(name.encode()) + value_bytes(each) for name, each in content.items())
        case "L":
            return 3 + sum(1 + value_bytes(each) for each in content)
    raise AssertionError(f"{kind} is not in a lease")
