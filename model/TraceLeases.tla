---------------------------- MODULE TraceLeases ----------------------------
(***************************************************************************)
(* Histories as behaviours of Leases.  Each history of `Traces` is an      *)
(* initial state, and brings the constants of the model with it.  Its next *)
(* event must be produced by an action of the model; steps that leave no   *)
(* event behind (a worker reads a row, gives up a lease, drops a late      *)
(* checkpoint) may come before it.  The history is a behaviour of the      *)
(* model if its last event is reached.                                     *)
(***************************************************************************)
EXTENDS Naturals, Sequences, TLC, Traces

VARIABLES row, held, delivered, late, run, left,
  t,   \* number of the history
  i    \* number of its next event

vars == <<row, held, delivered, late, run, left, t, i>>
View == <<row, held, delivered, late, run, t, i>>

L(T) == INSTANCE Leases WITH
  Penstock <- T.workers, Java <- T.java, Shards <- T.shards, Parents <- T.parents,
  Records <- T.records, MayForce <- TRUE, Disturbances <- 0

Init ==
  /\ t \in 1..Len(Traces)
  /\ i = 1
  /\ \E T \in {Traces[t]} :
       /\ row = [s \in T.shards |-> L(T)!NoRow]
       /\ held = [w \in T.workers \cup T.java |-> [s \in T.shards |-> L(T)!NotHeld]]
       /\ delivered = [s \in T.shards |-> 0]
       /\ run = [w \in T.workers \cup T.java |-> 1]
  /\ late = {}
  /\ left = 1000000000

Name(e) == e[1]
Worker(e) == e[2]
Shard(e) == e[3]
RowOf(r) == [exists |-> r[1], counter |-> r[2], owner |-> r[3], from |-> r[4], at |-> r[5], run |-> r[6]]
IsRow(r, e) == r = [RowOf(e) EXCEPT !.run = IF @ = 0 THEN r.run ELSE @]

-----------------------------------------------------------------------------
(* Writes.                                                                 *)

(* A renewal that changes nothing but the counter, too.  A worker without  *)
(* hand-overs keeps reading under a request.                               *)
AnyRenew(T, w, s) ==
  LET h == held[w][s] IN
  /\ L(T)!Reading(w, s) \/ L(T)!Asked(w, s)
  /\ L(T)!Send(L(T)!Write(IF h.phase = "asked" \/ w \in T.unaware THEN "RenewAsked" ELSE "Renew", w, s, h.counter, 0, L(T)!None),
               L(T)!Holding(h.phase, h.counter + 1, h.done))
  /\ UNCHANGED <<delivered, run>>

Adopt(T, w, s) ==
  LET r == row[s] IN
  /\ L(T)!Idle(w, s)
  /\ r.exists /\ r.at # L(T)!ShardEnd /\ L(T)!Reader(r) = w
  /\ L(T)!Send(L(T)!Write("RenewAsked", w, s, r.counter, 0, L(T)!None),
               L(T)!Holding(IF r.from = w /\ w \notin T.unaware THEN "asked" ELSE "reading", r.counter + 1, r.at))
  /\ UNCHANGED <<delivered, run>>

(* A checkpoint that changes nothing but the counter, too: a late one of   *)
(* an earlier reader has come first.  Records may have been delivered      *)
(* since the reader asked for it.                                          *)
AnyCheckpoint(T, w, s, at) ==
  LET h == held[w][s] IN
  /\ L(T)!Reading(w, s) \/ L(T)!Asked(w, s)
  /\ at <= h.done
  /\ L(T)!Send(L(T)!Write("Checkpoint", w, s, h.counter, at, L(T)!None), L(T)!Holding(h.phase, h.counter + 1, h.done))
  /\ UNCHANGED <<delivered, run>>

(* The leases of children, the first leases, and those that fill holes:    *)
(* the last two come from a listing.  NeverAgain, unless there are Java    *)
(* workers or a user has deleted the row.  A worker that does not know of  *)
(* the row may send one.                                                   *)
Create(T, w, s, isSent, isRemoved) ==
  /\ isSent \/ (~row[s].exists /\ (delivered[s] = 0 \/ isRemoved \/ T.java # {}))
  /\ L(T)!Send(L(T)!Write("Create", w, s, 0, 0, L(T)!None), held[w][s])
  /\ UNCHANGED <<delivered, run>>

(* Live leases are taken from workers without hand-overs, and under a      *)
(* policy without them.                                                    *)
TakeLive(T, w, s) ==
  LET r == row[s] IN
  /\ L(T)!Reader(r) \in T.unasked \/ w \in T.unaware
  /\ L(T)!Idle(w, s)
  /\ r.exists /\ r.at # L(T)!ShardEnd /\ L(T)!Reader(r) # w
  /\ L(T)!Send(L(T)!Write("Take", w, s, r.counter, 0, L(T)!None), L(T)!Holding("reading", r.counter + 1, r.at))
  /\ UNCHANGED <<delivered, run>>

(* A reader that has been asked and has reached the end of the shard goes  *)
(* on as before.  The children of a shard that has left the stream are     *)
(* found by listings.                                                      *)
End(T, w, s, isGone) ==
  LET h == held[w][s] IN
  /\ L(T)!Reading(w, s) \/ L(T)!Asked(w, s)
  /\ isGone \/ (h.done = T.records /\ \A c \in L(T)!Children(s) : row[c].exists)
  /\ L(T)!Send(L(T)!Write("End", w, s, h.counter, 0, L(T)!None), L(T)!NotHeld)
  /\ UNCHANGED <<delivered, run>>

(* A stop has waited for the reader long enough: the lease is released at  *)
(* an earlier position than that of the call under way, which goes on.     *)
ReleaseUnfinished(T, w, s) ==
  LET h == held[w][s] IN
  /\ L(T)!Reading(w, s) \/ L(T)!Asked(w, s)
  /\ \E at \in row[s].at..T.records :
       /\ at < h.done
       /\ L(T)!Send(L(T)!Write("Release", w, s, h.counter, at, IF h.phase = "asked" THEN row[s].owner ELSE L(T)!None), L(T)!Lost(h))
  /\ UNCHANGED <<delivered, run>>

(* A process that has not adopted a lease in its worker's name releases it *)
(* in one write: a restart during a hand-over, or a stop at once.          *)
ReleaseUnread(T, w, s) ==
  LET r == row[s] IN
  /\ L(T)!Idle(w, s)
  /\ r.exists /\ r.at # L(T)!ShardEnd /\ L(T)!Reader(r) = w
  /\ L(T)!Send(L(T)!Write("Release", w, s, r.counter, r.at, IF r.from = w THEN r.owner ELSE L(T)!None), L(T)!NotHeld)
  /\ UNCHANGED <<delivered, run>>

(* A request that is applied, or has no answer and may arrive later.  The  *)
(* worker may have read an older row, and its late checkpoint of an        *)
(* earlier lease may still be under way.                                   *)
RequestHandover(T, w, s, isSent, asked) ==
  LET r == row[s]
      m == L(T)!Write("RequestHandover", w, s, 0, 0, asked) IN
  /\ L(T)!Idle(w, s) \/ held[w][s].phase = "lost"
  /\ asked \notin {w, L(T)!None}
  /\ IF isSent THEN late' = late \cup {m} /\ UNCHANGED row
     ELSE /\ r.exists /\ r.at # L(T)!ShardEnd /\ r.from = L(T)!None
          /\ row' = [row EXCEPT ![s] = L(T)!After(@, m)]
          /\ UNCHANGED late
  /\ UNCHANGED <<held, delivered, run>>

(* So may a Delete.  A shard that has left the stream needs no children.   *)
Delete(T, w, s, isSent, isGone) ==
  LET r == row[s] IN
  /\ r.exists /\ r.at = L(T)!ShardEnd
  /\ isGone \/ ( /\ \A p \in T.parents[s] : ~row[p].exists
                /\ \A c \in L(T)!Children(s) : row[c].exists /\ row[c].at > 0
                /\ L(T)!Children(s) # {} )
  /\ \A m \in late : ~(m.kind = "Create" /\ m.shard = s)
  /\ IF isSent THEN late' = late \cup {L(T)!Write("Delete", w, s, r.counter, r.at, L(T)!None)} /\ UNCHANGED row
     ELSE row' = [row EXCEPT ![s] = L(T)!NoRow] /\ UNCHANGED late
  /\ UNCHANGED <<held, delivered, run>>

Max(a, b) == IF a < b THEN b ELSE a

(* Workers of the KCL.  A request does not stop one that knows no requests: *)
(* the counter stays.  One that knows them answers.                        *)
JavaWrite(T, w, s, kind, at, next, success) ==
  L(T)!Send(L(T)!Write(kind, w, s, row[s].counter, at, next), success)

JavaAction(T, e) ==
  LET w == Worker(e)
      s == Shard(e)
      r == row[s]
      h == held[w][s]
      next == L(T)!Holding("reading", r.counter + 1, IF h.phase = "none" THEN r.at ELSE h.done) IN
  /\ r.exists
  /\ CASE Name(e) = "JavaTake" -> JavaWrite(T, w, s, IF e[5][4] = "none" /\ r.from # L(T)!None THEN "Take" ELSE "JavaTake", 0, L(T)!None, L(T)!Holding("reading", r.counter + 1, r.at))
       [] Name(e) = "JavaRenew" -> JavaWrite(T, w, s, IF r.owner = w THEN "JavaRenew" ELSE "RenewAsked", 0, L(T)!None, next)
       [] Name(e) = "JavaCheckpoint" -> h.done = e[6] /\ JavaWrite(T, w, s, IF r.owner = w THEN "JavaCheckpoint" ELSE "Checkpoint", e[6], L(T)!None, next)
       [] Name(e) = "JavaEnd" ->
            /\ h.done = T.records /\ \A c \in L(T)!Children(s) : row[c].exists
            /\ IF e[5][3] = "none" THEN JavaWrite(T, w, s, "End", 0, L(T)!None, L(T)!NotHeld)
               ELSE JavaWrite(T, w, s, IF r.owner = w THEN "JavaCheckpoint" ELSE "Checkpoint", L(T)!ShardEnd, L(T)!None, L(T)!NotHeld)
       [] Name(e) = "JavaRelease" -> JavaWrite(T, w, s, "Release", Max(r.at, e[6]), IF e[5][3] = "none" THEN L(T)!None ELSE e[5][3], L(T)!NotHeld)
  /\ UNCHANGED <<delivered, run>>

(* The checkpoint of a query moves with a claim or a promotion.  Both      *)
(* leave the counter; their conditions are in Batches.  The tasks of a     *)
(* driver that has ended go on.                                            *)
Promote(T, w, s, at) ==
  /\ L(T)!Reader(row[s]) = w
  /\ row[s].at < at /\ at <= delivered[s]
  /\ row' = [row EXCEPT ![s].at = at]
  /\ UNCHANGED <<held, delivered, late, run>>

JavaWrites == {"JavaTake", "JavaRenew", "JavaCheckpoint", "JavaEnd", "JavaRelease"}
Writes == JavaWrites \cup {"Create", "Take", "Renew", "Checkpoint", "LateCheckpoint", "End", "Release", "RequestHandover", "Delete", "Promote"}

Progress == {"Checkpoint", "LateCheckpoint"}
Counted == {"Take", "Renew", "Checkpoint", "End", "Release", "Delete"}

(* Whether the answer was lost shows in the disturbances that are left: a  *)
(* lost answer takes one, and so do some writes.                           *)
Action(T, e) ==
  LET w == Worker(e)
      s == Shard(e)
      isSent == e[4] = "sent"
      cost == IF e[4] = "answered" THEN 0 ELSE 1
      Free(action) == action /\ left' = left - cost
      Costs(action) == action /\ left' = left - cost - 1 IN
  CASE Name(e) = "Create" -> Free(Create(T, w, s, isSent, e[7]))
    [] Name(e) = "Take" -> Free(L(T)!Take(w, s)) \/ Free(L(T)!TakeOverdue(w, s)) \/ Free(TakeLive(T, w, s))
    [] Name(e) = "Renew" -> Free(AnyRenew(T, w, s)) \/ Free(Adopt(T, w, s))
    [] Name(e) = "Checkpoint" -> Free(AnyCheckpoint(T, w, s, e[6]))
    [] Name(e) = "LateCheckpoint" -> Free(L(T)!LateCheckpoint(w, s))
    [] Name(e) = "Promote" -> Free(Promote(T, w, s, e[6]))
    [] Name(e) = "End" -> Free(End(T, w, s, e[7]))
    [] Name(e) = "Release" ->
         Free(L(T)!Release(w, s)) \/ Free(ReleaseUnread(T, w, s)) \/ Costs(L(T)!ReleaseFreely(w, s)) \/ (e[7] /\ Free(ReleaseUnfinished(T, w, s)))
    [] Name(e) = "RequestHandover" -> Free(RequestHandover(T, w, s, isSent, IF isSent THEN e[5][3] ELSE row[s].owner))
    [] Name(e) \in JavaWrites -> Free(JavaAction(T, e))
    [] Name(e) = "Delete" -> Free(Delete(T, w, s, isSent, e[7]))

Written(T, e) ==
  /\ Name(e) \in Writes
  /\ Action(T, e)
  /\ i' = i + 1
  /\ IF e[4] = "sent"
     THEN row' = row /\ \E m \in late' :
            m.shard = Shard(e) /\ (Name(e) \in Progress => m.at = e[6]) /\ (Name(e) \in Counted => m.counter = e[5][2])
     ELSE late' = late /\ IsRow(row'[Shard(e)], e[5])

(* A write that follows from a row as it was before: the table will refuse *)
(* it, whenever it arrives.                                                *)
Outdated(T, e) ==
  /\ Name(e) \in {"Take", "Renew", "Release", "Delete"} /\ e[4] = "sent"
  /\ L(T)!Idle(Worker(e), Shard(e))
  /\ ~row[Shard(e)].exists \/ e[5][2] < row[Shard(e)].counter
  /\ i' = i + 1
  /\ UNCHANGED <<row, held, delivered, late, run, left>>

Arrived(T, e) ==
  /\ Name(e) = "Arrive"
  /\ L(T)!Arrive
  /\ i' = i + 1
  /\ \E m \in late \ late' : m.kind = e[4] \/ (m.kind = "RenewAsked" /\ e[4] = "Renew")
  /\ IsRow(row'[Shard(e)], e[5])

-----------------------------------------------------------------------------
(* Steps that the table does not see, before a write of the worker, or     *)
(* before the row changes.                                                 *)

(* The worker reads the row, after a lost answer or in a refusal.          *)
Judged(T, w, s) ==
  LET h == held[w][s]
      judged == L(T)!Judge(w, s, h, row[s]) IN
  /\ h.kind # L(T)!None \/ (h.phase \in {"reading", "asked"} /\ judged # h)
  /\ held' = [held EXCEPT ![w][s] = IF w \in T.unaware /\ judged.phase = "asked" THEN [judged EXCEPT !.phase = "reading"] ELSE judged]
  /\ UNCHANGED <<row, delivered, late, run, left>>

(* Another worker has read the row after a lost answer, and a Create that  *)
(* arrives finds a row.                                                    *)
Before(T, e) ==
  LET s == Shard(e) IN
  /\ Name(e) \in Writes \cup {"Arrive", "Gone", "Given"}
  /\ i' = i
  /\ \/ \E w \in DOMAIN held : held[w][s].kind # L(T)!None /\ Judged(T, w, s)
     \/ /\ Name(e) \in {"Delete", "Gone"}
        /\ \E m \in late : m.kind = "Create" /\ m.shard = s /\ row[s].exists /\ late' = late \ {m}
        /\ UNCHANGED <<row, held, delivered, run, left>>

Unseen(T, e) ==
  LET w == Worker(e)
      s == Shard(e)
      h == held[w][s] IN
  /\ Name(e) \in Writes
  /\ i' = i
  /\ \/ Judged(T, w, s)
     \/ Name(e) # "LateCheckpoint" /\ L(T)!LateCheckpoint(w, s) /\ row' = row /\ (late' = late \/ h.done > row[s].at)
     \/ Name(e) = "LateCheckpoint" /\ L(T)!Pause(w, s)
     \/ Name(e) \in {"LateCheckpoint", "Take", "Renew", "RequestHandover"} /\ L(T)!GiveUp(w, s)

-----------------------------------------------------------------------------
(* Delivery and disturbances.                                              *)

(* A worker goes on until it finds that a user has deleted the row: its    *)
(* position, and not that of a row that is gone or new, shows that the     *)
(* shard has begun.                                                        *)
HasLostRow(T, e) ==
  LET h == held[Worker(e)][Shard(e)] IN
  h.done > 0 /\ row[Shard(e)].counter < h.counter

(* No parent is missing if one has left the stream or the shard has begun. *)
MissesNone(T, e) == e[Len(e)] \/ HasLostRow(T, e)

Waits(T, e) ==
  IF MissesNone(T, e) THEN \E p \in T.parents[Shard(e)] : row[p].exists /\ row[p].at # L(T)!ShardEnd
  ELSE L(T)!WaitsForParents(Shard(e))

DeliverFreely(T, e) ==
  LET w == Worker(e)
      s == Shard(e)
      h == held[w][s] IN
  /\ MissesNone(T, e) /\ ~Waits(T, e) /\ h.may
  /\ held' = [held EXCEPT ![w][s].done = @ + 1]
  /\ delivered' = [delivered EXCEPT ![s] = IF @ < h.done + 1 THEN h.done + 1 ELSE @]
  /\ UNCHANGED <<row, late, run, left>>

(* In a log nothing is known but the writes.  A worker delivers what its   *)
(* checkpoint or its end needs, and a deadline passes if a write needs it. *)
(* A worker of KCL 3 begins to read a lease in its name without a write.   *)
Assumed(T, e) ==
  LET w == Worker(e)
      s == Shard(e)
      h == held[w][s]
      r == L(T)!Reader(row[s]) IN
  /\ T.isLog /\ i' = i
  /\ \/ /\ Name(e) \in {"Checkpoint", "LateCheckpoint", "Release", "JavaCheckpoint"}
        /\ h.phase = "reading" /\ h.done < e[6] /\ e[6] <= T.records
        /\ ~L(T)!WaitsForParents(s)
        /\ held' = [held EXCEPT ![w][s].done = e[6]]
        /\ delivered' = [delivered EXCEPT ![s] = Max(@, e[6])]
        /\ UNCHANGED <<row, late, run, left>>
     \/ /\ Name(e) \in {"JavaCheckpoint", "JavaEnd"} /\ h.phase \notin {"reading", "asked"} /\ r = w
        /\ held' = [held EXCEPT ![w][s] = L(T)!Holding("reading", row[s].counter, row[s].at)]
        /\ UNCHANGED <<row, delivered, late, run, left>>
     \/ /\ Name(e) = "Promote" /\ delivered[s] < e[6] /\ e[6] <= T.records
        /\ ~L(T)!WaitsForParents(s)
        /\ held' = IF h.phase = "none" THEN held ELSE [held EXCEPT ![w][s].done = Max(@, e[6])]
        /\ delivered' = [delivered EXCEPT ![s] = e[6]]
        /\ UNCHANGED <<row, late, run, left>>
     \/ /\ Name(e) \in {"End", "JavaEnd"} /\ h.phase \in {"reading", "asked"} /\ h.done < T.records
        /\ ~L(T)!WaitsForParents(s)
        /\ held' = [held EXCEPT ![w][s].done = T.records]
        /\ delivered' = [delivered EXCEPT ![s] = T.records]
        /\ UNCHANGED <<row, late, run, left>>
     \/ /\ Name(e) = "Take" /\ r \notin {w, L(T)!None} \cup T.unasked
        /\ L(T)!Pause(r, s)

Deliver(T, e) ==
  LET w == Worker(e)
      s == Shard(e)
      h == held[w][s] IN
  /\ Name(e) \in {"Deliver", "Start"}
  /\ Name(e) = "Start" => e[4] <= delivered[s]
  /\ IF h.phase = "reading" /\ h.done < e[4]
     THEN (L(T)!Deliver(w, s) \/ DeliverFreely(T, e)) /\ i' = i
     ELSE UNCHANGED <<row, held, delivered, late, run, left>> /\ i' = i + 1

(* A handler is called: the condition of Deliver.                          *)
Begin(T, e) ==
  LET w == Worker(e)
      s == Shard(e) IN
  /\ Name(e) = "Begin"
  /\ held[w][s].phase = "reading" /\ held[w][s].may
  /\ ~Waits(T, e)
  /\ UNCHANGED <<row, held, delivered, late, run, left>>
  /\ i' = i + 1

(* The last ordinal has no records: it is reached with the end.            *)
Drain(T, e) ==
  LET w == Worker(e)
      s == Shard(e) IN
  /\ Name(e) = "Drain"
  /\ i' = i + 1
  /\ IF held[w][s].phase \in {"reading", "asked"} /\ held[w][s].done >= e[4]
     THEN /\ held' = [held EXCEPT ![w][s].done = T.records]
          /\ delivered' = [delivered EXCEPT ![s] = T.records]
          /\ UNCHANGED <<row, late, run, left>>
     ELSE UNCHANGED <<row, held, delivered, late, run, left>>

Disturbance(T, e) ==
  LET w == Worker(e)
      s == Shard(e) IN
  /\ i' = i + 1
  /\ CASE Name(e) = "Pause" ->
            IF held[w][s].may THEN L(T)!Pause(w, s) ELSE UNCHANGED <<row, held, delivered, late, run, left>>
       [] Name(e) = "Exit" ->
            IF \E each \in T.shards : held[w][each] # L(T)!NotHeld THEN L(T)!Crash(w)
            ELSE run' = [run EXCEPT ![w] = @ + 1] /\ UNCHANGED <<row, held, delivered, late, left>>
       [] Name(e) = "Gone" -> row' = [row EXCEPT ![s] = L(T)!NoRow] /\ UNCHANGED <<held, delivered, late, run, left>>
       [] Name(e) = "Given" -> row' = [row EXCEPT ![s] = RowOf(e[4])] /\ UNCHANGED <<held, delivered, late, run, left>>
       [] OTHER -> FALSE

(* A log does not show which worker has written a late checkpoint.         *)
Candidates(T, e) == IF Worker(e) = "any" THEN {[e EXCEPT ![2] = w] : w \in T.workers} ELSE {e}

Next ==
  \E T \in {Traces[t]} :
    /\ i <= Len(T.events)
    /\ t' = t
    /\ \E e \in Candidates(T, T.events[i]) :
         /\ Verbose => PrintT(<<"at", t, i, IF Shard(e) = "none" THEN 0 ELSE row[Shard(e)],
                               IF Shard(e) = "none" \/ Worker(e) = "none" THEN 0 ELSE held[Worker(e)][Shard(e)]>>)
         /\ \/ Written(T, e) \/ Outdated(T, e) \/ Arrived(T, e) \/ Before(T, e) \/ Unseen(T, e) \/ Assumed(T, e)
            \/ Deliver(T, e) \/ Begin(T, e) \/ Drain(T, e) \/ Disturbance(T, e)
         /\ i' > Len(T.events) => PrintT(<<"accepted", t>>)

Spec == Init /\ [][Next]_vars
=============================================================================
