"""Every write on a lease over every row: what the table does is what the pure rule says."""

from contract.ports.lease_cases import KEY, ROWS, WRITES, differences, same
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Applied


def test_every_write_over_every_row_does_what_the_pure_rule_does(dynamo):
    _, table = dynamo
    for row in ROWS:
        writes = sorted(WRITES, key=lambda write: not isinstance(apply_write(row, write), Applied))
        assert not isinstance(apply_write(row, writes[-1]), Applied)
        assert differences(dynamo, ((row, write) for write in writes)) == []
        assert same(table.fetch(KEY), row)  # the refused writes, which came last, have left it alone
