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
  entries, \* the batches of the location's log: batch, run, reads, start
  done,    \* how many of them are committed
  starts,  \* [shards -> where the next batch may start]
  read,    \* [shards -> the end of the batch under way, for shards that a task has read to it]
  gone,    \* [shards -> how many ordinals have records that have left the stream]
  t,       \* number of the history
  i        \* number of its next event

vars == <<row, entries, done, starts, read, gone, t, i>>
View == <<t, i>>

B(T) == INSTANCE Batches WITH
  Drivers <- {}, Shards <- T.shards, Parents <- T.parents, Records <- T.records, Batches <- 0, Kept <- 4, Kinds <- {},
  Disturbances <- 0, log <- <<>>, drv <- <<>>, tasks <- {}, late <- {}, other <- <<>>, done <- <<>>, runs <- 0, left <- 0

NoRow(T) == [B(T)!NewRow EXCEPT !.exists = FALSE]
Empty(T) == [s \in T.shards |-> 0]

Init ==
  /\ t \in 1..Len(Traces)
  /\ i = 1 /\ entries = <<>> /\ done = 0
  /\ \E T \in {Traces[t]} :
       /\ row = [s \in T.shards |-> NoRow(T)]
       /\ starts = [s \in T.shards |-> {}]
       /\ read = [s \in T.shards |-> B(T)!Absent]
       /\ gone = Empty(T)

Named(e) == entries[CHOOSE n \in 1..Len(entries) : entries[n].batch = e.batch]
IsLogged(e) == \E n \in 1..Len(entries) : entries[n].batch = e.batch
Last == entries[Len(entries)]
End(T, r, entry, s) == B(T)!EndOf(r.claim, entry.batch, entry.start[s], entry.run)

(* Where a driver that reads this row starts the next batch.  As long as   *)
(* the row is the query's and has no end of the last batch, it waits for   *)
(* one: EndsAreFixed.                                                      *)
StartsAt(T, r, s) ==
  CASE ~r.exists -> {}
    [] entries = <<>> -> {r.at}
    [] s \in Last.reads /\ B(T)!IsOfQuery(r) /\ End(T, r, Last, s) = B(T)!Absent -> {}
    [] OTHER -> {B(T)!ResolveStart(r, entries, Last.start[s])}

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
  /\ IsLogged(e) /\ Named(e).run = e.planner /\ e.shard \in Named(e).reads /\ Named(e).start[e.shard] = e.start
  /\ e.row = B(T)!AfterClaim(r, task)

Promote(T, e, r) ==
  /\ B(T)!IsOfQuery(r)
  /\ r.claim.batch = e.batch /\ r.claim.end = e.at /\ r.at < e.at
  /\ \E n \in 1..done : entries[n].batch = e.batch
  /\ e.row = [r EXCEPT !.at = e.at]

(* The other writes leave the claim.  A driver moves a checkpoint only to  *)
(* where its next batch may start: Drop, Release, End.                     *)
Keeps(e, r) == e.row.exists /\ e.row.claim = r.claim
Own(T, e, r) == Keeps(e, r) /\ r.at <= e.row.at /\ e.row.at \in {r.at} \cup starts[e.shard]
Others(T, e, r) == Keeps(e, r) /\ r.at <= e.row.at
Taken(T, e, r) == Keeps(e, r) /\ e.row.at = r.at

Written(T, e) ==
  LET r == row[e.shard] IN
  /\ CASE e.name = "Claim" -> r.exists /\ Claim(T, e, r)
       [] e.name = "Promote" -> Promote(T, e, r)
       [] e.name \in {"Take", "Renew", "RequestHandover"} -> r.exists /\ Taken(T, e, r)
       [] e.name \in {"Checkpoint", "LateCheckpoint", "Release", "End"} ->
            r.exists /\ (IF e.isOwn THEN Own(T, e, r) ELSE Others(T, e, r))
       [] e.name = "Create" -> ~r.exists
       [] e.name = "Delete" -> r.at = B(T)!ShardEnd /\ e.row = NoRow(T)
       [] OTHER -> FALSE
  /\ row' = [row EXCEPT ![e.shard] = e.row]
  /\ starts' = [starts EXCEPT ![e.shard] = @ \cup StartsAt(T, e.row, e.shard)]
  /\ UNCHANGED <<entries, done, read, gone>>

-----------------------------------------------------------------------------
(* The query.                                                              *)

(* A batch that is logged after the one before it is committed.            *)
Plan(T, e) ==
  /\ done = Len(entries)
  /\ entries # <<>> => Last.batch < e.batch
  /\ \A s \in e.reads : e.starts[s] \in starts[s]
  /\ entries' = Append(entries, [batch |-> e.batch, run |-> e.run, reads |-> e.reads,
                                 start |-> [s \in T.shards |-> IF s \in DOMAIN e.starts THEN e.starts[s] ELSE B(T)!Absent]])
  /\ read' = [s \in T.shards |-> B(T)!Absent]
  /\ UNCHANGED <<row, done, starts, gone>>

(* No record is between two ordinals, unless it has left the stream.       *)
NoRecord(T, s, from, to) == \A k \in T.holds[s] : from < k /\ k <= to => k <= gone[s] + 1

(* A task of a batch has read a shard: from its start to its claimed end.  *)
Read(T, e) ==
  LET s == e.shard
      entry == Named(e)
      end == End(T, row[s], entry, s) IN
  /\ IsLogged(e) /\ s \in entry.reads
  /\ end # B(T)!Absent
  /\ e.first >= entry.start[s] /\ NoRecord(T, s, entry.start[s], e.first)
  /\ e.last <= end /\ NoRecord(T, s, IF e.last < entry.start[s] THEN entry.start[s] ELSE e.last, end)
  /\ read' = IF entry = Last THEN [read EXCEPT ![s] = end] ELSE read
  /\ UNCHANGED <<row, entries, done, starts, gone>>

Commit(T, e) ==
  /\ done < Len(entries) /\ entries[done + 1].batch = e.batch
  /\ \A s \in Last.reads \ e.unread : read[s] # B(T)!Absent
  /\ done' = done + 1
  /\ starts' = [s \in T.shards |-> IF s \in Last.reads THEN StartsAt(T, row[s], s) ELSE starts[s]]
  /\ UNCHANGED <<row, entries, read, gone>>

Trim(T, e) == gone' = [gone EXCEPT ![e.shard] = e.at] /\ UNCHANGED <<row, entries, done, starts, read>>

(* NoFalseAlarm.                                                           *)
Refuse(T, e) == e.isAlone = FALSE /\ UNCHANGED <<row, entries, done, starts, read, gone>>

Next ==
  \E T \in {Traces[t]} :
    /\ i <= Len(T.events)
    /\ t' = t /\ i' = i + 1
    /\ \E e \in {T.events[i]} :
         /\ Verbose => PrintT(<<"at", t, i, IF "shard" \in DOMAIN e THEN <<row[e.shard], starts[e.shard]>> ELSE starts>>)
         /\ CASE e.name = "Plan" -> Plan(T, e)
              [] e.name = "Read" -> Read(T, e)
              [] e.name = "Commit" -> Commit(T, e)
              [] e.name = "Trim" -> Trim(T, e)
              [] e.name = "Refuse" -> Refuse(T, e)
              [] OTHER -> Written(T, e)
         /\ i' > Len(T.events) => PrintT(<<"accepted", t>>)

Spec == Init /\ [][Next]_vars
=============================================================================
