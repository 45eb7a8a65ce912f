------------------------------ MODULE MCLeases ------------------------------
EXTENDS Leases, TLC
MCShards == {"p", "q", "r", "m"}
MCParents == [s \in MCShards |-> CASE s = "p" -> {} [] s = "q" -> {"p"} [] s = "r" -> {"p"} [] s = "m" -> {"q", "r"}]
(***************************************************************************)
(* Counters are only compared for equality, and grow by one: a state is    *)
(* the same if all of a shard's counters are the same distance behind the  *)
(* row's.  Two behind can never match again.                               *)
(***************************************************************************)
Behind(s, counter) ==
  IF counter > row[s].counter THEN 9 ELSE IF counter + 1 < row[s].counter THEN 2 ELSE row[s].counter - counter
CanStillApply(m) ==
  \/ m.kind = "Create" /\ ~row[m.shard].exists
  \/ m.kind = "LateCheckpoint" /\ row[m.shard].at < m.at
  \/ m.kind \notin {"Create", "LateCheckpoint"} /\ Behind(m.shard, m.counter) = 0
Distances ==
  <<[s \in Shards |-> [row[s] EXCEPT !.counter = 0,
       !.run = IF Reader(row[s]) = None THEN 0 ELSE IF @ = run[Reader(row[s])] THEN 1 ELSE 2]],
    [w \in Workers |-> [s \in Shards |->
       IF held[w][s].phase \in {"reading", "asked"} THEN [held[w][s] EXCEPT !.counter = Behind(s, @)]
       ELSE [held[w][s] EXCEPT !.counter = 0]]],
    delivered,
    {[m EXCEPT !.counter = 0, !.run = IF @ = run[m.worker] THEN 1 ELSE 2] : m \in {each \in late : CanStillApply(each)}},
    left>>
Symmetric == Permutations(Penstock)
=============================================================================
