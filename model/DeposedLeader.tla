---------------------------- MODULE DeposedLeader ----------------------------
(***************************************************************************)
(* A rule of others: one worker of a KCL 3 fleet is the leader, and assigns*)
(* expired leases.  Its write has the owner that it read as the condition, *)
(* and not the counter.  A leader that was paused or deposed between       *)
(* reading and writing still writes.                                       *)
(***************************************************************************)
EXTENDS MCLeases

Decide(w, s) ==
  /\ late = {}
  /\ row[s].exists /\ row[s].at # ShardEnd
  /\ row[s].owner # w /\ Expired(s)
  /\ late' = {Write("Assign", w, s, 0, 0, row[s].owner)}
  /\ UNCHANGED <<row, held, delivered, run, left>>

LeaderSpec == Init /\ [][Next \/ \E w \in Penstock, s \in Shards : Decide(w, s)]_vars
=============================================================================
