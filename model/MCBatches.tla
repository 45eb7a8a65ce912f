------------------------------ MODULE MCBatches ------------------------------
EXTENDS Batches, TLC
Separate == [s \in Shards |-> {}]
Lineage == [s \in Shards |-> CASE s = "p" -> {} [] s = "q" -> {"p"} [] s = "r" -> {"p"} [] s = "m" -> {"q", "r"}]
(* A read finds a record, or the end.                                       *)
MoreEnds(start) == (start + 1)..ShardEnd
(* Histories in which the location is copied.                               *)
WithCopy == left > 0 \/ drv[2].loc = 2
=============================================================================
