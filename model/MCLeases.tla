------------------------------ MODULE MCLeases ------------------------------
(***************************************************************************)
(* Bounds for TLC: the streams, and which states are one state.            *)
(***************************************************************************)
EXTENDS Leases, TLC
CONSTANTS p, q, r, m

ParentsOf(s) == CASE s = p -> {} [] s = q -> {p} [] s = r -> {p} [] s = m -> {q, r}
(* A stream whose first shard has left it with its lease: q and r have no  *)
(* parent then.                                                            *)
MCParents == [s \in Shards |-> ParentsOf(s) \cap Shards]

(***************************************************************************)
(* Counters are only compared for equality, and grow by one: a state is    *)
(* the same if all of a shard's counters are the same distance behind the  *)
(* row's.  Two behind can never match again.                               *)
(***************************************************************************)
Behind(s, counter) ==
  IF counter > row[s].counter THEN 9 ELSE IF counter + 1 < row[s].counter THEN 2 ELSE row[s].counter - counter
CanStillApply(w) ==
  \/ w.kind = "Create" /\ ~row[w.shard].exists
  \/ w.kind = "LateCheckpoint" /\ row[w.shard].at < w.at
  \/ w.kind \notin {"Create", "LateCheckpoint"} /\ Behind(w.shard, w.counter) = 0
Distances ==
  <<[s \in Shards |-> [row[s] EXCEPT !.counter = 0,
       !.run = IF Reader(row[s]) = None THEN 0 ELSE IF @ = run[Reader(row[s])] THEN 1 ELSE 2]],
    [w \in Workers |-> [s \in Shards |->
       IF held[w][s].phase \in {"reading", "asked"} THEN [held[w][s] EXCEPT !.counter = Behind(s, @)]
       ELSE [held[w][s] EXCEPT !.counter = 0]]],
    delivered,
    {[each EXCEPT !.counter = 0, !.run = IF @ = run[each.worker] THEN 1 ELSE 2] : each \in {w \in late : CanStillApply(w)}},
    {w \in Workers : ~Alive(w)},
    left>>

(* Workers of one kind are interchangeable, and so are the two children of *)
(* the split.                                                              *)
Symmetric ==
  {a @@ b @@ c : a \in Permutations(Penstock), b \in Permutations(Java), c \in Permutations({q, r})}
=============================================================================
