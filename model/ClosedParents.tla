---------------------------- MODULE ClosedParents ----------------------------
(***************************************************************************)
(* A rule of others: a shard may be read once the listing of the stream    *)
(* shows its parents as closed.  Every shard with a child is closed, read  *)
(* or not; so with this rule no shard that has a lease waits.              *)
(***************************************************************************)
EXTENDS MCLeases

ParentIsOpen(s) == FALSE
=============================================================================
