"""Records as Arrow tables, and from there as frames of pandas or polars. Needs pyarrow: `pip install 'penstock[arrow]'`.

::

    def handle(batch):
        frame = to_arrow(batch).to_pandas()  # or polars.from_arrow(to_arrow(batch))

    frame = sql("select text from orders where arrived > now() - interval 1 hour").read_pandas()  # needs penstock[sql]
"""

from penstock.arrow_table import SCHEMA, to_arrow
from penstock.sql.call import sql

__all__ = ["SCHEMA", "sql", "to_arrow"]
