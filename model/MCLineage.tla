------------------------------ MODULE MCLineage ------------------------------
(* A shard that splits into two, which merge: the two are interchangeable.  *)
EXTENDS Batches, TLC
CONSTANTS p, q, r, m
Lineage == [s \in Shards |-> CASE s = p -> {} [] s \in {q, r} -> {p} [] s = m -> {q, r}]
Halves == Permutations({q, r})
(* A read finds nothing yet, or the whole rest of the shard.                *)
NothingOrAll(start) == {start, ShardEnd}
=============================================================================
