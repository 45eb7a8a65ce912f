----------------------------- MODULE HungHandover -----------------------------
(***************************************************************************)
(* A rule of others: the reader stops when it is asked for its lease, keeps*)
(* it alive, and leaves the last write to the requester.                   *)
(***************************************************************************)
EXTENDS MCLeases

NoRelease(w, s) == FALSE

TakeFromStopped(w, s) ==
  LET lease == row[s] IN
  /\ Idle(w, s)
  /\ lease.exists /\ lease.at # ShardEnd
  /\ lease.owner = w /\ lease.from # None
  /\ Asked(lease.from, s) \/ ~held[lease.from][s].may
  /\ Send(Write("Take", w, s, lease.counter, 0, None), Holding("reading", lease.counter + 1, lease.at))
  /\ UNCHANGED <<delivered, run>>
=============================================================================
