"""A delivery that is killed by an error at one of its steps."""


def kill_at(killed):
    """Return a function for `at_step` that raises an error at a step."""
    from penstock.errors import DeliveryFailed

    def kill(step):
        if step == killed:
            raise DeliveryFailed(f"killed at {killed}")

    return kill
