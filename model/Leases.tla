------------------------------- MODULE Leases -------------------------------
(***************************************************************************)
(* The lease protocol: workers share the shards of a stream through one    *)
(* row per shard.  Each action is a write of docs/lease-algorithm.md, a    *)
(* delivery to the handler, or a disturbance.  docs/protocol.md tells the  *)
(* module in prose.                                                        *)
(*                                                                         *)
(* Clocks.  No clock is modelled.  A holder may deliver while `may` holds; *)
(* `Pause` is the end of its deadline, 0.9 lease durations after the last  *)
(* successful write was sent.  Another worker sees the row unchanged for a *)
(* whole lease duration only after that, so expiry requires ~may.          *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Penstock,      \* the workers that run this protocol
  Java,          \* KCL 2.x workers: they take live leases and know no hand-over
  Shards,
  Parents,       \* [Shards -> SUBSET Shards]
  Records,       \* how many records each shard holds
  MayForce,      \* whether a requester takes a lease whose reader is slow to stop, but alive
  Disturbances   \* how many crashes, lost answers, pauses, hand-overs and forced takes happen in all

Workers == Penstock \cup Java
None == "none"
ShardEnd == Records + 1
Children(s) == {c \in Shards : s \in Parents[c]}
NoRow == [counter |-> 0, owner |-> None, from |-> None, at |-> 0, run |-> 0, exists |-> FALSE]
NotHeld == [phase |-> "none", counter |-> 0, done |-> 0, may |-> FALSE, kind |-> None]

VARIABLES
  row,        \* [Shards -> the lease's row]; `from` is checkpointOwner, `at` the checkpoint
  held,       \* [Workers -> [Shards -> what the worker believes of the lease]]
  delivered,  \* [Shards -> how many records of the shard a handler has finished]
  late,       \* writes without an answer that may still arrive at the table
  run,        \* [Workers -> number of the worker's process; 0 after its last one died]
  left        \* disturbances still to come

vars == <<row, held, delivered, late, run, left>>

Reader(r) == IF r.from # None THEN r.from ELSE r.owner
NewRow == [NoRow EXCEPT !.exists = TRUE]

Init ==
  /\ row = [s \in Shards |-> IF Parents[s] = {} THEN NewRow ELSE NoRow]
  /\ held = [w \in Workers |-> [s \in Shards |-> NotHeld]]
  /\ delivered = [s \in Shards |-> 0]
  /\ late = {}
  /\ run = [w \in Workers |-> 1]
  /\ left = Disturbances

-----------------------------------------------------------------------------
(* The table: the condition and the effect of each write.                  *)

Write(kind, w, s, counter, at, next) ==
  [kind |-> kind, worker |-> w, run |-> run[w], shard |-> s, counter |-> counter, at |-> at, next |-> next]

May(r, m) ==
  CASE m.kind = "Create" -> ~r.exists
    [] m.kind = "Take" -> r.exists /\ r.counter = m.counter
    [] m.kind = "JavaTake" -> r.exists /\ r.counter = m.counter
    [] m.kind = "Renew" -> r.exists /\ r.counter = m.counter /\ Reader(r) = m.worker /\ r.from = None
    [] m.kind = "RenewAsked" -> r.exists /\ r.counter = m.counter /\ Reader(r) = m.worker
    [] m.kind = "JavaRenew" -> r.exists /\ r.counter = m.counter /\ r.owner = m.worker
    [] m.kind = "Checkpoint" -> r.exists /\ r.counter = m.counter /\ Reader(r) = m.worker /\ r.at <= m.at
    [] m.kind = "JavaCheckpoint" -> r.exists /\ r.counter = m.counter /\ r.owner = m.worker
    [] m.kind = "LateCheckpoint" -> r.exists /\ r.at < m.at /\ m.at < ShardEnd
    [] m.kind = "End" -> r.exists /\ r.counter = m.counter /\ Reader(r) = m.worker /\ r.at # ShardEnd
    [] m.kind = "Release" -> r.exists /\ r.counter = m.counter /\ Reader(r) = m.worker /\ r.at <= m.at
    [] m.kind = "RequestHandover" -> r.exists /\ r.owner = m.next /\ r.from = None
    [] m.kind = "Delete" -> r.exists /\ r.counter = m.counter /\ r.at = m.at
    [] m.kind = "Assign" -> r.exists /\ r.owner = m.next /\ r.from = None  \* a KCL 3 leader's: DeposedLeader

After(r, m) ==
  CASE m.kind = "Create" -> NewRow
    [] m.kind = "Take" -> [r EXCEPT !.owner = m.worker, !.from = None, !.counter = @ + 1, !.run = m.run]
    [] m.kind = "JavaTake" -> [r EXCEPT !.owner = m.worker, !.counter = @ + 1]
    [] m.kind \in {"Renew", "RenewAsked"} -> [r EXCEPT !.counter = @ + 1, !.run = m.run]
    [] m.kind = "JavaRenew" -> [r EXCEPT !.counter = @ + 1]
    [] m.kind \in {"Checkpoint", "JavaCheckpoint"} -> [r EXCEPT !.counter = @ + 1, !.at = m.at]
    [] m.kind = "LateCheckpoint" -> [r EXCEPT !.at = m.at]
    [] m.kind = "End" -> [r EXCEPT !.counter = @ + 1, !.at = ShardEnd, !.owner = None, !.from = None]
    [] m.kind = "Release" -> [r EXCEPT !.counter = @ + 1, !.at = m.at, !.owner = m.next, !.from = None]
    [] m.kind = "RequestHandover" -> [r EXCEPT !.owner = m.worker, !.from = m.next]
    [] m.kind = "Delete" -> NoRow
    [] m.kind = "Assign" -> [r EXCEPT !.owner = m.worker, !.counter = @ + 1]

-----------------------------------------------------------------------------
(* A worker's judgement of a row after a refusal or a lost answer.         *)

Lost(h) == IF h.phase \in {"reading", "asked"} /\ h.done > 0 THEN [h EXCEPT !.phase = "lost", !.may = FALSE, !.kind = None] ELSE NotHeld

Judge(w, s, h, r) ==
  LET mine == h.counter = r.counter \/ (h.counter + 1 = r.counter /\ r.run = run[w]) IN
  CASE ~r.exists -> Lost(h)
    [] h.kind = "End" /\ r.at = ShardEnd -> NotHeld
    [] Reader(r) = w /\ mine /\ h.phase \in {"reading", "asked"} ->
         [h EXCEPT !.phase = IF r.from = w THEN "asked" ELSE h.phase,
                   !.counter = r.counter, !.kind = None,
                   !.done = IF r.at > @ /\ r.at # ShardEnd THEN r.at ELSE @]
    [] OTHER -> Lost(h)

(* After a lost answer the worker reads the row before it writes again.    *)
(* Without a held lease it has nothing to settle: it decides anew.  A      *)
(* late checkpoint is repeated, or forgotten with the next lease.          *)
AfterSilence(w, h, kind) ==
  CASE h.phase = "none" -> {h}
    [] w \in Java -> {NotHeld}
    [] h.phase = "lost" -> {h, NotHeld}
    [] OTHER -> {[h EXCEPT !.kind = kind, !.may = @ /\ kind # "Release"]}  \* its reader was stopped before

(* A write is applied and answered, refused and answered, or its answer is *)
(* lost: then it was applied, or it arrives later, or never.  `cost` is 1  *)
(* if the write itself is a disturbance.                                   *)
SendAt(m, success, cost) ==
  LET w == m.worker
      s == m.shard
      h == held[w][s] IN
  \/ /\ May(row[s], m)
     /\ row' = [row EXCEPT ![s] = After(@, m)]
     /\ held' = [held EXCEPT ![w][s] = success]
     /\ left' = left - cost
     /\ UNCHANGED late
  \/ /\ ~May(row[s], m)
     /\ held' = [held EXCEPT ![w][s] =
                   IF w \in Java THEN NotHeld ELSE Judge(w, s, [h EXCEPT !.kind = m.kind], row[s])]
     /\ left' = left - cost
     /\ UNCHANGED <<row, late>>
  \/ /\ left > cost
     /\ left' = left - cost - 1
     /\ \E after \in AfterSilence(w, h, m.kind) : held' = [held EXCEPT ![w][s] = after]
     /\ \/ /\ May(row[s], m)
           /\ row' = [row EXCEPT ![s] = After(@, m)]
           /\ UNCHANGED late
        \/ /\ late' = late \cup {m}
           /\ UNCHANGED row

Send(m, success) == SendAt(m, success, 0)

Arrive ==
  \E m \in late :
    /\ late' = late \ {m}
    /\ row' = IF May(row[m.shard], m) THEN [row EXCEPT ![m.shard] = After(@, m)] ELSE row
    /\ UNCHANGED <<held, delivered, run, left>>

(* The worker reads the row after a lost answer.                           *)
Resolve(w, s) ==
  /\ held[w][s].kind # None
  /\ held' = [held EXCEPT ![w][s] = Judge(w, s, @, row[s])]
  /\ UNCHANGED <<row, delivered, late, run, left>>

Alive(w) == run[w] # 0
Idle(w, s) == Alive(w) /\ held[w][s].phase = "none" /\ held[w][s].kind = None
Reading(w, s) == held[w][s].phase = "reading" /\ held[w][s].kind = None
Asked(w, s) == held[w][s].phase = "asked" /\ held[w][s].kind = None

Holding(phase, counter, done) == [phase |-> phase, counter |-> counter, done |-> done, may |-> TRUE, kind |-> None]

-----------------------------------------------------------------------------
(* The writes of a worker.                                                 *)

(* Nobody can deliver under this row: it has no reader, or the reader's    *)
(* deadline has passed.                                                    *)
Expired(s) == Reader(row[s]) # None => ~held[Reader(row[s])][s].may

Take(w, s) ==
  LET r == row[s] IN
  /\ Idle(w, s)
  /\ r.exists /\ r.at # ShardEnd
  /\ Reader(r) # w
  /\ Expired(s)
  /\ Send(Write("Take", w, s, r.counter, 0, None), Holding("reading", r.counter + 1, r.at))
  /\ UNCHANGED <<delivered, run>>

(* A lease in the worker's own name that it does not hold: after a restart *)
(* or at the end of a hand-over.                                           *)
Adopt(w, s) ==
  LET r == row[s] IN
  /\ Idle(w, s)
  /\ r.exists /\ r.at # ShardEnd
  /\ Reader(r) = w
  /\ Send(Write("RenewAsked", w, s, r.counter, 0, None),
          Holding(IF r.from = w THEN "asked" ELSE "reading", r.counter + 1, r.at))
  /\ UNCHANGED <<delivered, run>>

(* Only renewals that change something: the deadline has passed, or the    *)
(* row has a request that the worker has not seen.                         *)
Renew(w, s) ==
  LET h == held[w][s] IN
  /\ Reading(w, s) \/ Asked(w, s)
  /\ ~h.may \/ (h.phase = "reading" /\ row[s].from = w) \/ Reader(row[s]) # w \/ row[s].counter # h.counter
  /\ Send(Write(IF h.phase = "asked" THEN "RenewAsked" ELSE "Renew", w, s, h.counter, 0, None),
          Holding(h.phase, h.counter + 1, h.done))
  /\ UNCHANGED <<delivered, run>>

Checkpoint(w, s) ==
  LET h == held[w][s] IN
  /\ Reading(w, s)
  /\ h.done > row[s].at
  /\ Send(Write("Checkpoint", w, s, h.counter, h.done, None), Holding("reading", h.counter + 1, h.done))
  /\ UNCHANGED <<delivered, run>>

(* The deadline has passed without a renewal: the worker drops the lease. *)
GiveUp(w, s) ==
  LET h == held[w][s] IN
  /\ h.phase \in {"reading", "asked"} /\ ~h.may
  /\ held' = [held EXCEPT ![w][s] = Lost(h)]
  /\ UNCHANGED <<row, delivered, late, run, left>>

LateCheckpoint(w, s) ==
  /\ held[w][s].phase = "lost"
  /\ Send(Write("LateCheckpoint", w, s, 0, held[w][s].done, None), NotHeld)
  /\ UNCHANGED <<delivered, run>>

(* Nothing in the row of a child shows that it was read and deleted, so    *)
(* only a worker that surely has the parent's lease creates it.            *)
CreateChild(w, s, c) ==
  LET h == held[w][s] IN
  /\ Reading(w, s) /\ h.done = Records
  /\ h.may \/ w \in Java
  /\ c \in Children(s) /\ ~row[c].exists
  /\ \A p \in Parents[c] \ {s} : row[p].exists
  /\ Send([Write("Create", w, c, 0, 0, None) EXCEPT !.shard = c], held[w][c])
  /\ UNCHANGED <<delivered, run>>

End(w, s) ==
  LET h == held[w][s] IN
  /\ Reading(w, s) /\ h.done = Records
  /\ \A c \in Children(s) : row[c].exists
  /\ Send(Write("End", w, s, h.counter, 0, None), NotHeld)
  /\ UNCHANGED <<delivered, run>>

RequestHandover(w, s) ==
  LET r == row[s] IN
  /\ Idle(w, s)
  /\ r.exists /\ r.at # ShardEnd /\ r.from = None
  /\ r.owner \in Penstock \ {w}
  /\ left > 0
  /\ row' = [row EXCEPT ![s] = After(@, Write("RequestHandover", w, s, 0, 0, r.owner))]
  /\ left' = left - 1
  /\ UNCHANGED <<held, delivered, late, run>>

Release(w, s) ==
  LET h == held[w][s] IN
  /\ Asked(w, s)
  /\ Send(Write("Release", w, s, h.counter, h.done, row[s].owner), NotHeld)
  /\ UNCHANGED <<delivered, run>>

(* An orderly stop, or a lease that another worker should have.            *)
ReleaseFreely(w, s) ==
  LET h == held[w][s] IN
  /\ Reading(w, s)
  /\ left > 0
  /\ SendAt(Write("Release", w, s, h.counter, h.done, None), NotHeld, 1)
  /\ UNCHANGED <<delivered, run>>

(* The hand-over is overdue: the requester takes the lease although its    *)
(* reader may still deliver.                                               *)
TakeOverdue(w, s) ==
  LET r == row[s] IN
  /\ Idle(w, s)
  /\ r.exists /\ r.at # ShardEnd
  /\ r.owner = w /\ r.from # None
  /\ MayForce \/ ~held[r.from][s].may
  /\ Send(Write("Take", w, s, r.counter, 0, None), Holding("reading", r.counter + 1, r.at))
  /\ UNCHANGED <<delivered, run>>

(* A live lease of a worker that knows no hand-over.                       *)
TakeUnasked(w, s) ==
  LET r == row[s] IN
  /\ Idle(w, s)
  /\ r.exists /\ r.at # ShardEnd
  /\ Reader(r) \in Java /\ ~Expired(s)
  /\ left > 0
  /\ SendAt(Write("Take", w, s, r.counter, 0, None), Holding("reading", r.counter + 1, r.at), 1)
  /\ UNCHANGED <<delivered, run>>

(* Finished leases leave the table once their children are under way.  The *)
(* rest of three lease durations lets no late Create of the row survive,   *)
(* and no deadline of an earlier holder.                                   *)
Delete(w, s) ==
  LET r == row[s] IN
  /\ r.exists /\ r.at = ShardEnd
  /\ \A p \in Parents[s] : ~row[p].exists
  /\ \A c \in Children(s) : row[c].exists /\ row[c].at > 0
  /\ \A m \in late : ~(m.kind = "Create" /\ m.shard = s)
  /\ \A other \in Penstock : ~held[other][s].may
  /\ Children(s) # {}
  /\ Alive(w)
  /\ row' = [row EXCEPT ![s] = NoRow]
  /\ UNCHANGED <<held, delivered, late, run, left>>

-----------------------------------------------------------------------------
(* Delivery and disturbances.                                              *)

(* A shard waits for a parent that is not finished, and for one without a  *)
(* row while another is finished and the shard itself has not begun.       *)
WaitsForParents(s) ==
  \/ \E p \in Parents[s] : row[p].exists /\ row[p].at # ShardEnd
  \/ /\ row[s].at = 0
     /\ \E p \in Parents[s] : row[p].exists
     /\ \E p \in Parents[s] : ~row[p].exists

Deliver(w, s) ==
  LET h == held[w][s] IN
  /\ h.phase = "reading" /\ h.may
  /\ h.done < Records
  /\ ~WaitsForParents(s)
  /\ held' = [held EXCEPT ![w][s].done = @ + 1]
  /\ delivered' = [delivered EXCEPT ![s] = IF @ < h.done + 1 THEN h.done + 1 ELSE @]
  /\ UNCHANGED <<row, late, run, left>>

Pause(w, s) ==
  /\ held[w][s].may /\ left > 0
  /\ held' = [held EXCEPT ![w][s].may = FALSE]
  /\ left' = left - 1
  /\ UNCHANGED <<row, delivered, late, run>>

(* A process ends, and its worker begins another one.                      *)
Crash(w) ==
  /\ left > 0
  /\ \E s \in Shards : held[w][s] # NotHeld
  /\ held' = [held EXCEPT ![w] = [s \in Shards |-> NotHeld]]
  /\ run' = [run EXCEPT ![w] = @ + 1]
  /\ left' = left - 1
  /\ UNCHANGED <<row, delivered, late>>

(* A worker that owns, reads or has requested a lease ends for good.  Some *)
(* worker stays.                                                           *)
Die(w) ==
  /\ left > 0
  /\ Alive(w) /\ \E other \in Workers \ {w} : Alive(other)
  /\ \E s \in Shards : held[w][s] # NotHeld \/ row[s].owner = w
  /\ held' = [held EXCEPT ![w] = [s \in Shards |-> NotHeld]]
  /\ run' = [run EXCEPT ![w] = 0]
  /\ left' = left - 1
  /\ UNCHANGED <<row, delivered, late>>

(***************************************************************************)
(* A KCL 2.x worker: it takes live leases without asking, does not know    *)
(* checkpointOwner, and goes on delivering until a write of its own is     *)
(* refused.                                                                *)
(***************************************************************************)
JavaTake(w, s) ==
  LET r == row[s] IN
  /\ Idle(w, s)
  /\ r.exists /\ r.at # ShardEnd /\ r.owner # w
  /\ \/ /\ Expired(s)
        /\ Send(Write("JavaTake", w, s, r.counter, 0, None), Holding("reading", r.counter + 1, r.at))
     \/ /\ ~Expired(s) /\ left > 0
        /\ row' = [row EXCEPT ![s] = After(@, Write("JavaTake", w, s, r.counter, 0, None))]
        /\ held' = [held EXCEPT ![w][s] = Holding("reading", r.counter + 1, r.at)]
        /\ left' = left - 1
        /\ UNCHANGED late
  /\ UNCHANGED <<delivered, run>>

JavaRenew(w, s) ==
  LET h == held[w][s] IN
  /\ Reading(w, s)
  /\ ~h.may \/ row[s].owner # w \/ row[s].counter # h.counter
  /\ Send(Write("JavaRenew", w, s, h.counter, 0, None), Holding("reading", h.counter + 1, h.done))
  /\ UNCHANGED <<delivered, run>>

JavaCheckpoint(w, s) ==
  LET h == held[w][s] IN
  /\ Reading(w, s)
  /\ h.done # row[s].at /\ h.done > 0
  /\ Send(Write("JavaCheckpoint", w, s, h.counter, h.done, None), Holding("reading", h.counter + 1, h.done))
  /\ UNCHANGED <<delivered, run>>

JavaEnd(w, s) ==
  LET h == held[w][s] IN
  /\ Reading(w, s) /\ h.done = Records
  /\ \A c \in Children(s) : row[c].exists
  /\ Send(Write("JavaCheckpoint", w, s, h.counter, ShardEnd, None), NotHeld)
  /\ UNCHANGED <<delivered, run>>

JavaDeliver(w, s) ==
  LET h == held[w][s] IN
  /\ Reading(w, s) /\ h.done < Records
  /\ ~WaitsForParents(s)
  /\ held' = [held EXCEPT ![w][s].done = @ + 1]
  /\ delivered' = [delivered EXCEPT ![s] = IF @ < h.done + 1 THEN h.done + 1 ELSE @]
  /\ UNCHANGED <<row, late, run, left>>

JavaStep(w, s) ==
  \/ JavaTake(w, s) \/ JavaRenew(w, s) \/ JavaCheckpoint(w, s) \/ JavaEnd(w, s) \/ JavaDeliver(w, s)
  \/ \E c \in Shards : CreateChild(w, s, c)

WorkerStep(w, s) ==
  \/ Take(w, s) \/ Adopt(w, s) \/ Renew(w, s) \/ Checkpoint(w, s) \/ GiveUp(w, s) \/ LateCheckpoint(w, s)
  \/ \E c \in Shards : CreateChild(w, s, c)
  \/ End(w, s) \/ Release(w, s) \/ Resolve(w, s) \/ TakeOverdue(w, s) \/ Delete(w, s)
  \/ Deliver(w, s)

Next ==
  \/ \E w \in Penstock, s \in Shards :
       WorkerStep(w, s) \/ RequestHandover(w, s) \/ ReleaseFreely(w, s) \/ TakeUnasked(w, s) \/ Pause(w, s)
  \/ \E w \in Java, s \in Shards : JavaStep(w, s) \/ Pause(w, s)
  \/ \E w \in Workers : Crash(w) \/ Die(w)
  \/ Arrive

(* A Java worker renews on threads of its own: it learns that a lease is   *)
(* lost, whatever else it can do with the shard.                           *)
Spec ==
  /\ Init /\ [][Next]_vars
  /\ \A w \in Penstock, s \in Shards : WF_vars(WorkerStep(w, s))
  /\ \A w \in Java, s \in Shards : WF_vars(JavaStep(w, s)) /\ WF_vars(JavaRenew(w, s))

-----------------------------------------------------------------------------
(* The promises.                                                           *)

(* A checkpoint never covers a record that no handler has finished.        *)
NothingSkipped ==
  \A s \in Shards : row[s].exists =>
    (IF row[s].at = ShardEnd THEN Records ELSE row[s].at) <= delivered[s]

(* A child is not begun before its parents are finished.                   *)
ChildrenAfterParents ==
  \A s \in Shards : delivered[s] > 0 => \A p \in Parents[s] : delivered[p] = Records

(* No two workers deliver one shard at the same time, unless one of them   *)
(* took the lease of a reader that did not answer.                         *)
OneReader ==
  MayForce \/ \A s \in Shards : Cardinality({w \in Penstock : held[w][s].phase = "reading" /\ held[w][s].may}) <= 1

(* Every step of a worker brings the end nearer: only disturbances lead    *)
(* back, and they are bounded.  So if no worker can do anything, all is    *)
(* read.                                                                   *)
NothingStuck ==
  \/ \A s \in Shards : delivered[s] = Records
  \/ \E w \in Penstock, s \in Shards : ENABLED WorkerStep(w, s)
  \/ \E w \in Java, s \in Shards : ENABLED JavaStep(w, s)

(* A lease that was deleted is not created again: its shard would be read  *)
(* again from its start.                                                   *)
NeverAgain ==
  [][\A s \in Shards : ~row[s].exists /\ row'[s].exists => delivered[s] = 0]_vars

(* Once the disturbances are over, every shard is read to its end, and its *)
(* end is written.                                                         *)
EveryShardIsRead ==
  <>[](\A s \in Shards : delivered[s] = Records /\ (row[s].exists => row[s].at = ShardEnd))

(* Only a Java worker moves a checkpoint back: a late checkpoint does not  *)
(* fence it.                                                               *)
NeverBack ==
  [][\A s \in Shards : row[s].exists /\ row'[s].exists => row[s].at <= row'[s].at]_vars

=============================================================================
