---------------------------- MODULE TraceBatches ----------------------------
(***************************************************************************)
(* Histories of a Spark query as behaviours of Batches: the rows of its    *)
(* leases, with its claims, and its checkpoint location.  Each history of  *)
(* `Traces` is an initial state, and each event has one step, with the     *)
(* conditions and effects of Batches.  What a driver or task reads, and    *)
(* when, leaves no event: a batch may start wherever a row has been read   *)
(* since the one before it was committed.                                  *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC, Traces

VARIABLES
  row,     \* [shards -> the lease's row, as in Batches]; holder 1 is any driver of the query, 99 another worker
  plans,   \* every batch that was ever planned: batch, run, reads, start
  entries, \* the batches of the location's log
  done,    \* how many of them are committed
  claimed, \* every claim that was ever made: the plan of its batch, the shard, the end
  commits, \* the numbers of the batches that were ever committed
  starts,  \* [shards -> where the next batch may start]
  read,    \* [shards -> the end of the batch under way, for shards that a task has read to it]
  gone,    \* [shards -> how many ordinals have records that have left the stream]
  t,       \* number of the history
  i        \* number of its next event

vars == <<row, plans, entries, done, claimed, commits, starts, read, gone, t, i>>
View == <<read, t, i>>

B(T) == INSTANCE Batches WITH
  Drivers <- {}, Shards <- T.shards, Parents <- T.parents, Records <- T.records, Batches <- 0, Kept <- 4, Kinds <- {},
  Disturbances <- 0, log <- <<>>, drv <- <<>>, tasks <- {}, late <- {}, other <- <<>>, done <- <<>>, runs <- 0, left <- 0

NoRow(T) == [B(T)!NewRow EXCEPT !.exists = FALSE]
Empty(T) == [s \in T.shards |-> 0]

Init ==
  /\ t \in 1..Len(Traces)
  /\ i = 1 /\ plans = {} /\ entries = <<>> /\ done = 0 /\ claimed = {} /\ commits = {}
  /\ \E T \in {Traces[t]} :
       /\ row = [s \in T.shards |-> NoRow(T)]
       /\ starts = [s \in T.shards |-> {}]
       /\ read = [s \in T.shards |-> B(T)!Absent]
       /\ gone = Empty(T)

End(T, r, plan, s) == B(T)!EndOf(r.claim, plan.batch, plan.start[s], plan.run)

(* A claim of which a location that was set back has no record: a driver   *)
(* resets the lease before it goes on.                                     *)
GoesBack(T, list, r, s) ==
  LET last == list[Len(list)] IN
  /\ B(T)!IsUnknown(list, r.claim)
  /\ r.at = B(T)!ShardEnd \/ r.holder # B(T)!Other
  /\ r.claim.batch > last.batch \/ (last.start[s] # B(T)!Absent /\ ~(r.claim.end < r.at))

(* Where a driver that reads this row starts the next batch.  As long as   *)
(* the row is the query's and has no end of the last batch, it waits for   *)
(* one: EndsAreFixed.                                                      *)
StartsAt(T, list, r, s) ==
  LET last == list[Len(list)] IN
  CASE ~r.exists -> {}
    [] list = <<>> -> {r.at}
    [] GoesBack(T, list, r, s) -> {}
    [] s \in last.reads /\ B(T)!IsOfQuery(r) /\ End(T, r, last, s) = B(T)!Absent -> {}
    [] OTHER -> {B(T)!ResolveStart(r, list, last.start[s])}

(* No record is between two ordinals, unless it has left the stream.       *)
NoRecord(T, s, from, to) == \A k \in T.holds[s] : from < k /\ k <= to => k <= gone[s] + 1

-----------------------------------------------------------------------------
(* Writes on rows.                                                         *)

(* A task's claim of a batch that the location has logged.  The row has no *)
(* end of it, and no later claim.  A claim that holds records starts where *)
(* no other worker has read on: PlanRead.                                  *)
Claim(T, e, r) ==
  LET task == [batch |-> e.batch, run |-> e.run, planner |-> e.planner, start |-> e.start, end |-> e.end,
               before |-> e.before, rowAt |-> e.rowAt, forfeits |-> e.forfeits] IN
  /\ B(T)!MayClaim(r, task)
  /\ B(T)!EndOf(r.claim, e.batch, e.start, e.planner) = B(T)!Absent
  /\ r.claim.batch < e.batch \/ ~B(T)!Knows(entries, r.claim)
  /\ e.forfeits \/ ~(e.start < r.at)
  /\ \E p \in plans :
       /\ p.batch = e.batch /\ p.run = e.planner /\ e.shard \in p.reads /\ p.start[e.shard] = e.start
       /\ claimed' = claimed \cup {<<p, e.shard, e.end>>}
  /\ e.row = B(T)!AfterClaim(r, task)

Promote(T, e, r) ==
  /\ B(T)!IsOfQuery(r)
  /\ r.claim.batch = e.batch /\ r.claim.end = e.at /\ r.at < e.at
  /\ e.batch \in commits
  /\ e.row = [r EXCEPT !.at = e.at]

(* The other writes leave the claim.  A driver moves a checkpoint only to  *)
(* where its next batch may start (Drop, Release), and ends a shard that   *)
(* has no record behind it.                                                *)
Keeps(e, r) == r.exists /\ e.row.exists /\ e.row.claim = r.claim /\ r.at <= e.row.at
Own(T, e, r) ==
  IF e.name = "End" THEN \E at \in starts[e.shard] : NoRecord(T, e.shard, at, B(T)!ShardEnd)
  ELSE e.row.at \in {r.at} \cup starts[e.shard]

(* The row goes back to the position of the location.  The claim of the    *)
(* location's last batch stays, or an empty one of the batch before.  An   *)
(* operator's reset leaves the claim.                                      *)
Reset(T, e, r) ==
  LET last == entries[Len(entries)]
      place == IF last.start[e.shard] = B(T)!Absent THEN 0 ELSE last.start[e.shard]
      end == B(T)!EndOf(r.claim, last.batch, place, last.run)
      claim == e.row.claim IN
  /\ entries # <<>> /\ GoesBack(T, entries, r, e.shard)
  /\ e.row.at = place /\ e.row.holder = B(T)!Nobody
  /\ claim.start = place
  /\ IF end = B(T)!Absent THEN claim.batch = last.batch - 1 /\ claim.end = place
     ELSE claim.batch = last.batch /\ claim.end = end

Written(T, e) ==
  LET r == row[e.shard] IN
  /\ CASE e.name = "Claim" -> r.exists /\ Claim(T, e, r)
       [] e.name = "Promote" -> Promote(T, e, r)
       [] e.name \in {"Take", "Renew", "RequestHandover"} -> Keeps(e, r) /\ e.row.at = r.at
       [] e.name \in {"Checkpoint", "LateCheckpoint", "Release", "End"} -> Keeps(e, r) /\ (e.isOwn => Own(T, e, r))
       [] e.name = "Reset" -> r.exists /\ IF e.isOwn THEN Reset(T, e, r) ELSE e.row.claim = r.claim
       [] e.name = "Create" -> ~r.exists
       [] e.name = "Delete" -> r.at = B(T)!ShardEnd /\ e.row = NoRow(T)
       [] OTHER -> FALSE
  /\ row' = [row EXCEPT ![e.shard] = e.row]
  /\ starts' = [starts EXCEPT ![e.shard] = @ \cup StartsAt(T, entries, e.row, e.shard)]
  /\ e.name # "Claim" => UNCHANGED claimed
  /\ UNCHANGED <<plans, entries, done, commits, read, gone>>

-----------------------------------------------------------------------------
(* The query.                                                              *)

(* A batch that is logged after the one before it is committed.            *)
Plan(T, e) ==
  LET start == [s \in T.shards |-> IF s \in DOMAIN e.starts THEN e.starts[s] ELSE B(T)!Absent]
      plan == [batch |-> e.batch, run |-> e.run, reads |-> e.reads, start |-> start] IN
  /\ done = Len(entries)
  /\ entries # <<>> => entries[done].batch < e.batch
  /\ \A s \in e.reads : start[s] \in starts[s]
  /\ plans' = plans \cup {plan}
  /\ entries' = Append(entries, plan)
  /\ read' = [s \in T.shards |-> B(T)!Absent]
  /\ UNCHANGED <<row, done, claimed, commits, starts, gone>>

(* A task of a batch has read a shard: from its start to its claimed end.  *)
Read(T, e) ==
  \E c \in claimed :
    LET p == c[1]
        s == c[2]
        end == c[3] IN
    /\ p.batch = e.batch /\ s = e.shard
    /\ e.first >= p.start[s] /\ NoRecord(T, s, p.start[s], e.first)
    /\ e.last <= end /\ NoRecord(T, s, IF e.last < p.start[s] THEN p.start[s] ELSE e.last, end)
    /\ read' = IF p = entries[Len(entries)] THEN [read EXCEPT ![s] = end] ELSE read
    /\ UNCHANGED <<row, plans, entries, done, claimed, commits, starts, gone>>

Commit(T, e) ==
  LET last == entries[Len(entries)] IN
  /\ done < Len(entries) /\ last.batch = e.batch
  /\ \A s \in last.reads \ e.unread : read[s] # B(T)!Absent
  /\ done' = done + 1
  /\ commits' = commits \cup {e.batch}
  /\ starts' = [s \in T.shards |-> IF s \in last.reads THEN StartsAt(T, entries, row[s], s) ELSE starts[s]]
  /\ UNCHANGED <<row, plans, entries, claimed, read, gone>>

SetBack(T, e) ==
  LET IsKept(p) == p.batch <= e.batch
      kept == SelectSeq(entries, IsKept) IN
  /\ entries' = kept
  /\ done' = IF e.isCommitted \/ kept = <<>> THEN Len(kept) ELSE Len(kept) - 1
  /\ starts' = [s \in T.shards |-> StartsAt(T, kept, row[s], s)]
  /\ read' = [s \in T.shards |-> B(T)!Absent]
  /\ UNCHANGED <<row, plans, claimed, commits, gone>>

Trim(T, e) == gone' = [gone EXCEPT ![e.shard] = e.at] /\ UNCHANGED <<row, plans, entries, done, claimed, commits, starts, read>>

(* NoFalseAlarm.                                                           *)
Refuse(T, e) == ~e.isAlone /\ UNCHANGED <<row, plans, entries, done, claimed, commits, starts, read, gone>>

Next ==
  \E T \in {Traces[t]} :
    /\ i <= Len(T.events)
    /\ t' = t /\ i' = i + 1
    /\ \E e \in {T.events[i]} :
         /\ Verbose => PrintT(<<"at", t, i, IF "shard" \in DOMAIN e THEN <<row[e.shard], starts[e.shard]>> ELSE starts>>)
         /\ CASE e.name = "Plan" -> Plan(T, e)
              [] e.name = "Read" -> Read(T, e)
              [] e.name = "Commit" -> Commit(T, e)
              [] e.name = "SetBack" -> SetBack(T, e)
              [] e.name = "Trim" -> Trim(T, e)
              [] e.name = "Refuse" -> Refuse(T, e)
              [] OTHER -> Written(T, e)
         /\ i' > Len(T.events) => PrintT(<<"accepted", t>>)

Spec == Init /\ [][Next]_vars
=============================================================================
