------------------------------- MODULE Batches -------------------------------
(***************************************************************************)
(* The batches of one Spark query.  Each action is a write on a lease's    *)
(* row, a write on the checkpoint location, a step of a task, or a         *)
(* disturbance.  docs/protocol.md tells the module in prose.               *)
(*                                                                         *)
(* Leases are as in Leases.tla, with one step for each change of hands:    *)
(* `holder` is the process that wrote the row last as its reader.  Rows    *)
(* name a worker only.  All drivers of the query are one worker, so the    *)
(* writes that tasks make cannot tell their driver from another one.       *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
  Drivers,       \* processes beside Spark's driver, 1 and 2
  Shards,
  Parents,       \* [Shards -> SUBSET Shards]
  Records,       \* how many records each shard holds
  Batches,       \* how many batches a location logs
  Kept,          \* earlier ranges that a claim keeps
  Kinds,         \* which disturbances happen
  Disturbances   \* how many of them happen in all

ShardEnd == Records + 1
Absent == Records + 2
Differ == Records + 3
Nobody == 0
Other == 99            \* another worker of the application
Locations == {1, 2}
Positions == 0..ShardEnd
Children(s) == {c \in Shards : s \in Parents[c]}

VARIABLES
  row,     \* [Shards -> the lease's row: holder, checkpoint `at`, the query's claim]
  log,     \* [Locations -> Spark's log of offsets, and how many are committed]
  drv,     \* [Drivers -> the driver's process]
  tasks,   \* executions of a batch in one shard that have read and not claimed
  late,    \* promotions that were sent and have not arrived
  other,   \* [Shards -> position and records of the other worker's handler]
  done,    \* [Shards -> records that were committed in any line of history, or handled]
  runs,    \* how many driver processes have begun
  left     \* disturbances still to come

vars == <<row, log, drv, tasks, late, other, done, runs, left>>

NoClaim == [batch |-> 0, run |-> 0, planner |-> 0, start |-> 0, end |-> 0, earlier |-> <<>>]
NewRow == [exists |-> TRUE, holder |-> Nobody, at |-> 0, claim |-> NoClaim]
Nowhere == [s \in Shards |-> Absent]
Down == [mode |-> "down", run |-> 0, loc |-> 1, at |-> 0, ran |-> FALSE, last |-> 0, unknown |-> 0,
         seen |-> [s \in Shards |-> <<0, 0>>], held |-> {}, pos |-> Nowhere, got |-> {}]
Initial == [batch |-> 0, run |-> 0, start |-> Nowhere, reads |-> {}, ends |-> Nowhere, passed |-> {}]

Init ==
  /\ row = [s \in Shards |-> [NewRow EXCEPT !.exists = Parents[s] = {}]]
  /\ log = [l \in Locations |-> [entries |-> <<>>, committed |-> 0]]
  /\ drv = [d \in Drivers |-> Down]
  /\ tasks = {}
  /\ late = {}
  /\ other = [s \in Shards |-> [at |-> 0, holds |-> FALSE, read |-> {}]]
  /\ done = [s \in Shards |-> {}]
  /\ runs = 0
  /\ left = Disturbances

Max(a, b) == IF a > b THEN a ELSE b
Span(from, to) == {k \in 1..Records : from < k /\ k <= to}
IsOfQuery(r) == r.holder # Nobody /\ r.holder # Other
Identity(claim) == <<claim.batch, claim.run>>
Spend(kind) == kind \in Kinds /\ left > 0 /\ left' = left - 1
Alive(d) == drv[d].mode \notin {"down", "refused"}
Entries(d) == log[drv[d].loc].entries
Entry(d) == IF drv[d].at = 0 THEN Initial ELSE Entries(d)[drv[d].at]
ReadyFor(s) == row[s].exists /\ row[s].at # ShardEnd /\ \A p \in Parents[s] : row[p].at = ShardEnd

-----------------------------------------------------------------------------
(* Whose batch a claim is of: core/batches/known_batches.py.               *)

PlannerOf(entries, batch) ==
  LET after == {i \in 1..Len(entries) : entries[i].batch >= batch} IN
  IF after = {} THEN 0 ELSE entries[CHOOSE i \in after : \A j \in after : i <= j].run

IsOf(claim, batch, planner) == claim.batch = batch /\ claim.planner = planner

Knows(entries, claim) ==
  /\ entries # <<>>
  /\ claim.batch <= entries[Len(entries)].batch
  /\ IsOf(claim, claim.batch, PlannerOf(entries, claim.batch))

KnownTo(d) == SubSeq(Entries(d), 1, drv[d].at)
IsUnknown(entries, claim) == claim # NoClaim /\ ~Knows(entries, claim)

Past(claim) == <<[batch |-> claim.batch, planner |-> claim.planner, start |-> claim.start, end |-> claim.end]>> \o claim.earlier
Shortened(list, n) == SubSeq(list, 1, IF Len(list) < n THEN Len(list) ELSE n)

EndOf(claim, batch, start, planner) ==
  LET list == Past(claim)
      found == {i \in 1..Len(list) : IsOf(list[i], batch, planner) /\ list[i].start = start} IN
  IF claim = NoClaim \/ found = {} THEN Absent ELSE list[CHOOSE i \in found : \A j \in found : i <= j].end

-----------------------------------------------------------------------------
(* The three pure functions of core/batches/claims.py.                     *)

(* A task has its lease's row: read to a claimed end, read freely, claim   *)
(* that the batch holds nothing, or fail.                                  *)
PlanRead(r, t) ==
  LET end == EndOf(r.claim, t.batch, t.start, t.planner) IN
  CASE end # Absent -> "to"
    [] r.claim # NoClaim /\ Identity(r.claim) # t.seen -> "another"
    [] ~IsOfQuery(r) -> "nothing"
    [] t.start < r.at -> "nothing"
    [] r.claim = NoClaim /\ t.seen # <<0, 0>> -> "nothing"
    [] OTHER -> "free"

ResolveStart(r, entries, planned) ==
  LET last == entries[Len(entries)].batch
      own == /\ r.claim # NoClaim /\ Knows(entries, r.claim)
             /\ IF planned = Absent THEN r.claim.batch < last
                ELSE r.claim.batch = last /\ r.claim.start = planned IN
  IF own /\ ~(r.claim.end < r.at) THEN r.claim.end
  ELSE IF planned = Absent \/ own \/ planned < r.at THEN r.at ELSE planned

(* A shard of this driver; Absent if another worker reads it on.           *)
NextStart(d, s) ==
  LET r == row[s]
      entries == KnownTo(d)
      planned == Entry(d).start[s] IN
  IF entries = <<>> THEN r.at
  ELSE IF /\ ~IsOfQuery(r)
          /\ ~(r.claim # NoClaim /\ Knows(entries, r.claim) /\ r.claim.batch = Entry(d).batch /\ r.claim.end > r.at)
       THEN Absent
  ELSE ResolveStart(r, entries, planned)

(* A claim that was made since the query began, or since it got the shard. *)
IsNew(d, s) ==
  /\ IsUnknown(KnownTo(d), row[s].claim)
  /\ row[s].claim.batch > drv[d].unknown
  /\ Identity(row[s].claim) # drv[d].seen[s]

(* A claim that another driver, on an older copy, has put in place of the  *)
(* one that the tasks of the batch were to find.                           *)
IsReplaced(d, s) ==
  LET claim == row[s].claim IN
  /\ s \in Entry(d).reads /\ claim # NoClaim
  /\ claim.batch < Entry(d).batch /\ Knows(KnownTo(d), claim)
  /\ Identity(claim) # drv[d].seen[s]

(* Another driver has reset the lease since this one saw its claim.        *)
IsReset(d, s) == row[s].claim # NoClaim /\ row[s].claim.batch < drv[d].seen[s][1]

SeenNow(seen, s, r) ==
  IF r.claim # NoClaim /\ r.claim.batch >= seen[s][1] THEN [seen EXCEPT ![s] = Identity(r.claim)] ELSE seen

-----------------------------------------------------------------------------
(* A driver begins: core/batches/rewind.py.                                *)

GoesBack(d, s) ==
  LET r == row[s]
      entries == Entries(d)
      logged == IF entries = <<>> THEN Initial ELSE entries[Len(entries)] IN
  /\ entries # <<>>
  /\ r.exists /\ IsUnknown(entries, r.claim)
  /\ r.at = ShardEnd \/ r.holder # Other
  /\ r.claim.batch > logged.batch \/ (logged.start[s] # Absent /\ ~(r.claim.end < r.at))

(* The location has no record of a later claim, or of one that goes back.  *)
LastUnknown(d) ==
  LET entries == Entries(d)
      unknown == {s \in Shards : IsUnknown(entries, row[s].claim)}
      last == IF entries = <<>> THEN 0 ELSE entries[Len(entries)].batch IN
  IF \E s \in unknown : row[s].claim.batch > last \/ GoesBack(d, s)
  THEN CHOOSE b \in {row[s].claim.batch : s \in unknown} : \A s \in unknown : row[s].claim.batch <= b
  ELSE 0

Start(d) ==
  LET l == drv[d].loc IN
  /\ ~Alive(d)
  /\ IF drv[d].mode = "refused" \/ (drv[d].run = 0 /\ d # 1 /\ l = 1) THEN Spend("start") ELSE UNCHANGED left
  /\ runs' = runs + 1
  /\ drv' = [drv EXCEPT ![d] = [Down EXCEPT !.loc = l, !.mode = "joining", !.run = runs + 1, !.unknown = LastUnknown(d)]]
  /\ UNCHANGED <<row, log, tasks, late, other, done>>

(* Another driver renews leases in the query's name.                       *)
SeesAnother(d) ==
  \E e \in Drivers \ {d} : Alive(e) /\ \E s \in Shards : row[s].holder = drv[e].run

Refuse(d) == drv' = [drv EXCEPT ![d] = [Down EXCEPT !.loc = drv[d].loc, !.mode = "refused", !.run = drv[d].run]]

RefuseToBegin(d) ==
  /\ drv[d].mode = "joining"
  /\ LastUnknown(d) > 0 /\ SeesAnother(d)
  /\ Refuse(d)
  /\ UNCHANGED <<row, log, tasks, late, other, done, runs, left>>

(* The other driver may be paused: then it is not seen.  The claim is this *)
(* run's, so that the other one finds another claim than it has seen.      *)
Reset(d, s) ==
  LET entries == Entries(d)
      logged == entries[Len(entries)]
      r == row[s]
      place == IF logged.start[s] = Absent THEN 0 ELSE logged.start[s]
      end == EndOf(r.claim, logged.batch, place, logged.run)
      batch == IF end = Absent THEN logged.batch - 1 ELSE logged.batch IN
  /\ drv[d].mode = "joining"
  /\ GoesBack(d, s)
  /\ \A x \in Shards : GoesBack(d, x) => r.claim.batch <= row[x].claim.batch
  /\ IF SeesAnother(d) THEN Spend("pause") ELSE UNCHANGED left
  /\ row' = [row EXCEPT ![s] = [r EXCEPT !.holder = Nobody, !.at = place,
       !.claim = [NoClaim EXCEPT !.batch = batch, !.run = drv[d].run, !.planner = PlannerOf(entries, batch),
                                 !.start = place, !.end = IF end = Absent THEN place ELSE end]]]
  /\ UNCHANGED <<log, drv, tasks, late, other, done, runs>>

Joined(d) ==
  LET l == drv[d].loc
      count == Len(log[l].entries)
      runsAgain == count > log[l].committed
      logged == IF count = 0 THEN Initial ELSE log[l].entries[count]
      free == {s \in Shards : ReadyFor(s) /\ (row[s].holder = Nobody \/ (IsOfQuery(row[s]) /\ row[s].holder < drv[d].run))} IN
  /\ drv[d].mode = "joining"
  /\ \A s \in Shards : ~GoesBack(d, s)
  /\ ~(LastUnknown(d) > 0 /\ SeesAnother(d))
  /\ \E taken \in {free, {}} :
       /\ IF taken # free THEN Spend("slow") ELSE UNCHANGED left
       /\ row' = [s \in Shards |-> IF s \in taken THEN [row[s] EXCEPT !.holder = drv[d].run] ELSE row[s]]
       /\ drv' = [drv EXCEPT ![d].mode = IF runsAgain THEN "running" ELSE "done",
                        ![d].at = count,
                        ![d].held = taken,
                        ![d].ran = runsAgain,
                        ![d].last = Max(logged.batch, drv[d].unknown),
                        ![d].seen = [s \in Shards |-> Identity(row[s].claim)]]
  /\ UNCHANGED <<log, tasks, late, other, done, runs>>

-----------------------------------------------------------------------------
(* The lease coordinator: the query gets and loses shards.                 *)

(* An unowned lease, or one of an earlier process of this query.  The      *)
(* driver may get an older row of a shard that it has just released.       *)
TakeRow(d, s, isOld) ==
  LET r == IF isOld THEN [row[s] EXCEPT !.at = 0, !.claim = NoClaim] ELSE row[s]
      v == drv[d]
      settled == v.mode = "settled"
      wasReleased == s \notin v.held /\ v.pos[s] # Absent
      planned == IF v.at = 0 THEN Absent ELSE Entry(d).start[s]
      place == IF wasReleased /\ ~(v.pos[s] < r.at) THEN v.pos[s]
               ELSE IF KnownTo(d) = <<>> THEN r.at ELSE ResolveStart(r, KnownTo(d), planned) IN
  /\ v.mode \in {"running", "done", "settled"}
  /\ ReadyFor(s)
  /\ isOld => settled /\ wasReleased /\ r.holder # Other
  /\ r.holder \in {Nobody, Other} \/ (IsOfQuery(r) /\ r.holder < v.run)
  /\ IF isOld THEN Spend("old row") ELSE IF r.holder = Other THEN Spend("force") ELSE UNCHANGED left
  /\ row' = [row EXCEPT ![s].holder = v.run]
  /\ IF ~isOld /\ (IsNew(d, s) \/ (settled /\ IsReset(d, s))) THEN Refuse(d)
     ELSE drv' = [drv EXCEPT ![d].held = @ \cup {s},
                             ![d].seen = IF settled \/ @[s] = <<0, 0>> THEN SeenNow(@, s, r) ELSE @,
                             ![d].pos[s] = IF settled THEN place ELSE Absent]
  /\ UNCHANGED <<log, tasks, late, other, done, runs>>

Take(d, s) == \E isOld \in BOOLEAN : TakeRow(d, s, isOld)

(* The lease of a shard that the driver still has is another process's:    *)
(* the driver gives it up between batches, and writes how far it is, if    *)
(* the claim is the one that it has seen.                                  *)
Drop(d, s) ==
  LET v == drv[d] IN
  /\ v.mode = "settled"
  /\ v.pos[s] # Absent /\ row[s].holder # v.run
  /\ s \in v.held \/ v.pos[s] > row[s].at
  /\ row' = IF row[s].at < v.pos[s] /\ v.pos[s] # ShardEnd /\ Identity(row[s].claim) = v.seen[s]
            THEN [row EXCEPT ![s].at = v.pos[s]] ELSE row
  /\ drv' = [drv EXCEPT ![d].held = @ \ {s}, ![d].pos[s] = IF v.pos[s] = ShardEnd THEN Absent ELSE @]
  /\ UNCHANGED <<log, tasks, late, other, done, runs, left>>

Release(d, s) ==
  LET v == drv[d] IN
  /\ v.mode = "settled"
  /\ s \in v.held /\ row[s].holder = v.run
  /\ v.pos[s] \notin {Absent, ShardEnd}
  /\ Spend("release")
  /\ row[s].at <= v.pos[s]
  /\ row' = [row EXCEPT ![s].at = v.pos[s], ![s].holder = Nobody]
  /\ drv' = [drv EXCEPT ![d].held = @ \ {s}]
  /\ UNCHANGED <<log, tasks, late, other, done, runs>>

WithChildren(rows, s) ==
  [c \in Shards |->
    IF c = s THEN [rows[c] EXCEPT !.at = ShardEnd, !.holder = Nobody]
    ELSE IF c \in Children(s) /\ ~rows[c].exists /\ \A p \in Parents[c] : rows[p].exists THEN NewRow ELSE rows[c]]

End(d, s) ==
  LET v == drv[d] IN
  /\ v.mode = "settled"
  /\ s \in v.held /\ row[s].holder = v.run
  /\ v.pos[s] = ShardEnd
  /\ row' = WithChildren(row, s)
  /\ drv' = [drv EXCEPT ![d].held = @ \ {s}]
  /\ UNCHANGED <<log, tasks, late, other, done, runs, left>>

-----------------------------------------------------------------------------
(* Another worker of the application.                                      *)

OtherTake(s) ==
  /\ ReadyFor(s) /\ row[s].holder # Other
  /\ Spend(IF row[s].holder = Nobody THEN "take" ELSE "force")
  /\ row' = [row EXCEPT ![s].holder = Other]
  /\ other' = [other EXCEPT ![s].holds = TRUE, ![s].at = row[s].at]
  /\ UNCHANGED <<log, drv, tasks, late, done, runs>>

OtherRead(s) ==
  LET o == other[s] IN
  /\ o.holds /\ o.at < Records
  /\ other' = [other EXCEPT ![s].at = @ + 1, ![s].read = @ \cup {o.at + 1}]
  /\ done' = [done EXCEPT ![s] = @ \cup {o.at + 1}]
  /\ UNCHANGED <<row, log, drv, tasks, late, runs, left>>

(* Its checkpoint and release, the end of the shard, or a late checkpoint. *)
OtherStop(s) ==
  LET o == other[s]
      r == row[s] IN
  /\ o.holds
  /\ other' = [other EXCEPT ![s].holds = FALSE, ![s].at = 0]
  /\ row' = IF r.holder = Other
            THEN IF o.at = Records THEN WithChildren(row, s)
                 ELSE [row EXCEPT ![s].at = Max(@, o.at), ![s].holder = Nobody]
            ELSE IF r.at < o.at THEN [row EXCEPT ![s].at = o.at] ELSE row
  /\ UNCHANGED <<log, drv, tasks, late, done, runs, left>>

-----------------------------------------------------------------------------
(* A task: it reads the row, then records, then claims.                    *)

Task(d, s) ==
  [driver |-> d, run |-> drv[d].run, loc |-> drv[d].loc, at |-> drv[d].at, shard |-> s, batch |-> Entry(d).batch,
   planner |-> Entry(d).run, start |-> Entry(d).start[s], seen |-> drv[d].seen[s], fixes |-> drv[d].mode = "done",
   end |-> 0, before |-> <<0, 0>>, rowAt |-> 0, forfeits |-> FALSE]

(* An execution is whole: compare it with the first one, and give it to    *)
(* Spark if its driver still runs the batch.                               *)
Finish(t, end) ==
  LET entries == log[t.loc].entries
      same == t.at <= Len(entries) /\ entries[t.at].batch = t.batch /\ entries[t.at].run = t.planner
      first == entries[t.at].ends[t.shard]
      v == drv[t.driver] IN
  /\ log' = IF same
            THEN [log EXCEPT ![t.loc].entries[t.at].ends[t.shard] = IF first \in {Absent, end} THEN end ELSE Differ]
            ELSE log
  /\ drv' = IF v.run = t.run /\ v.mode = (IF t.fixes THEN "done" ELSE "running") /\ v.at = t.at
            THEN [drv EXCEPT ![t.driver].got = @ \cup {t.shard}] ELSE drv

Dies(t) ==
  IF drv[t.driver].run = t.run /\ Alive(t.driver) THEN Refuse(t.driver) ELSE UNCHANGED drv

Ready(t, r, end, forfeits) == [t EXCEPT !.end = end, !.before = Identity(r.claim), !.rowAt = r.at, !.forfeits = forfeits]

(* Where a free read ends.                                                 *)
FreeEnds(start) == start..ShardEnd

(* What a task does with the row; `ends` are those that a free read may    *)
(* have.                                                                   *)
Decide(t, rest, ends) ==
  LET r == row[t.shard]
      plan == PlanRead(r, t) IN
  /\ CASE plan = "to" -> tasks' = rest /\ Finish(t, EndOf(r.claim, t.batch, t.start, t.planner))
       [] plan = "another" -> tasks' = rest /\ Dies(t) /\ UNCHANGED log
       [] plan = "nothing" -> tasks' = rest \cup {Ready(t, r, t.start, TRUE)} /\ UNCHANGED <<log, drv>>
       [] plan = "free" -> /\ \E end \in ends : tasks' = rest \cup {Ready(t, r, end, FALSE)}
                           /\ UNCHANGED <<log, drv>>
  /\ UNCHANGED <<row, late, other, done, runs>>

Own(d, s) == {t \in tasks : t.shard = s /\ t.run = drv[d].run /\ t.at = drv[d].at}

(* The first attempt, a retry, or (a disturbance) one beside another.      *)
Fetch(d, s) ==
  /\ drv[d].mode = "running"
  /\ s \in Entry(d).reads
  /\ IF s \in drv[d].got \/ Own(d, s) # {} THEN Spend("attempt") ELSE UNCHANGED left
  /\ Decide(Task(d, s), tasks, FreeEnds(Entry(d).start[s]))

(* A done batch without a claim in a shard: an action left rows unread.    *)
Unclaimed(d) ==
  {s \in Entry(d).reads :
    IsOfQuery(row[s]) /\ (row[s].claim.batch # Entry(d).batch \/ ~Knows(KnownTo(d), row[s].claim))}

FixEnd(d, s) ==
  LET t == [Task(d, s) EXCEPT !.seen = Identity(row[s].claim)] IN
  /\ drv[d].mode = "done"
  /\ s \in Unclaimed(d) \ drv[d].got
  /\ \A x \in Own(d, s) : ~x.fixes
  /\ ~IsNew(d, s) /\ ~IsReplaced(d, s)
  /\ Decide(t, tasks, IF drv[d].ran THEN FreeEnds(t.start) ELSE {t.start})
  /\ UNCHANGED left

MayClaim(r, t) ==
  /\ t.forfeits \/ IsOfQuery(r)
  /\ Identity(r.claim) = t.before
  /\ t.forfeits \/ r.at = t.rowAt

AfterClaim(r, t) ==
  [r EXCEPT
    !.claim = [batch |-> t.batch, run |-> t.run, planner |-> t.planner, start |-> t.start, end |-> t.end,
               earlier |-> IF r.claim = NoClaim THEN <<>> ELSE Shortened(Past(r.claim), Kept)],
    !.at = IF t.forfeits THEN @ ELSE Max(@, t.start)]

Claim(t) ==
  /\ MayClaim(row[t.shard], t)
  /\ row' = [row EXCEPT ![t.shard] = AfterClaim(@, t)]
  /\ tasks' = tasks \ {t}
  /\ \/ Finish(t, t.end) /\ UNCHANGED left
     \/ Spend("lost") /\ UNCHANGED <<log, drv>>  \* the executor dies before it can answer
  /\ UNCHANGED <<late, other, done, runs>>

(* The claim was refused, or its answer was lost: the row decides.         *)
Judge(t) ==
  LET r == row[t.shard]
      plan == PlanRead(r, t)
      end == EndOf(r.claim, t.batch, t.start, t.planner)
      rest == tasks \ {t} IN
  /\ ~MayClaim(r, t)
  /\ CASE plan = "to" /\ end >= t.end -> tasks' = rest /\ Finish(t, end)
       [] plan = "another" -> tasks' = rest /\ Dies(t) /\ UNCHANGED log
       [] plan = "nothing" /\ t.end = t.start ->
            tasks' = rest \cup {Ready(t, r, t.end, TRUE)} /\ UNCHANGED <<log, drv>>
       [] plan = "free" ->
            tasks' = rest \cup {Ready(t, r, t.end, FALSE)} /\ UNCHANGED <<log, drv>>
       [] OTHER -> tasks' = rest /\ UNCHANGED <<log, drv>>  \* it fails, and Spark repeats it
  /\ UNCHANGED <<row, late, other, done, runs, left>>

-----------------------------------------------------------------------------
(* The driver between batches.                                             *)

(* Every shard of the batch has an accepted execution.  An action that     *)
(* leaves rows unread is a disturbance.  Spark logs a batch as done once.  *)
Commit(d) ==
  LET v == drv[d]
      l == v.loc
      whole == Entry(d).reads \subseteq v.got IN
  /\ v.mode = "running"
  /\ IF whole THEN UNCHANGED left ELSE Spend("unread")
  /\ IF log[l].committed # v.at - 1
     THEN whole /\ Refuse(d) /\ UNCHANGED <<log, done>>
     ELSE /\ log' = [log EXCEPT ![l].committed = v.at, ![l].entries[v.at].passed = v.got]
          /\ drv' = [drv EXCEPT ![d].mode = "done", ![d].got = {}]
          /\ done' = [s \in Shards |->
               IF s \in v.got THEN done[s] \cup Span(Entry(d).start[s], Entry(d).ends[s]) ELSE done[s]]
  /\ UNCHANGED <<row, tasks, late, other, runs>>

(* Rows that no action has read count as read when the driver goes on      *)
(* behind a claimed end of their batch.                                    *)
Settle(d) ==
  LET v == drv[d]
      e == Entry(d)
      end == [s \in Shards |-> EndOf(row[s].claim, e.batch, e.start[s], e.run)]
      unread == {s \in e.reads \ e.passed : end[s] # Absent}
      toRead == {s \in Shards : row[s].exists /\ (s \in Entry(d).reads \/ (s \in v.held /\ v.pos[s] = Absent))}
      next == [s \in Shards |-> IF s \notin v.held THEN Absent
                                ELSE IF s \in toRead THEN NextStart(d, s) ELSE v.pos[s]] IN
  /\ v.mode = "done"
  /\ IF \E s \in toRead : IsNew(d, s) \/ IsReplaced(d, s) THEN Refuse(d) /\ UNCHANGED <<log, done>>
     ELSE /\ Unclaimed(d) \subseteq v.got
          /\ \A t \in tasks : ~(t.fixes /\ t.run = v.run)
          /\ log' = IF unread = {} THEN log ELSE [log EXCEPT ![v.loc].entries[v.at].passed = @ \cup unread,
               ![v.loc].entries[v.at].ends = [s \in Shards |-> IF s \in unread THEN end[s] ELSE @[s]]]
          /\ done' = [s \in Shards |-> IF s \in unread THEN done[s] \cup Span(Entry(d).start[s], end[s]) ELSE done[s]]
          /\ drv' = [drv EXCEPT ![d].mode = "settled", ![d].pos = next,
                                ![d].held = {s \in v.held : IsOfQuery(row[s])}, ![d].got = {},
                                ![d].seen = [s \in Shards |-> IF s \in toRead THEN SeenNow(@, s, row[s])[s] ELSE @[s]],
                                ![d].last = Max(@, Entry(d).batch)]
  /\ UNCHANGED <<row, tasks, late, other, runs, left>>

(* While the query is idle, the claimed end of a batch becomes the         *)
(* checkpoint.  The write may arrive at any later time.                    *)
Promote(d, s) ==
  LET v == drv[d]
      claim == row[s].claim IN
  /\ v.mode = "settled" /\ s \in v.held
  /\ Knows(KnownTo(d), claim)
  /\ row[s].at < claim.end /\ claim.end <= v.pos[s] /\ claim.end \in 1..Records
  /\ \/ row' = [row EXCEPT ![s] = IF IsOfQuery(@) THEN [@ EXCEPT !.at = claim.end] ELSE @] /\ UNCHANGED <<late, left>>
     \/ /\ Spend("late")
        /\ late' = late \cup {[shard |-> s, batch |-> claim.batch, end |-> claim.end]}
        /\ UNCHANGED row
  /\ UNCHANGED <<log, drv, tasks, other, done, runs>>

Arrive ==
  \E m \in late :
    LET r == row[m.shard] IN
    /\ late' = late \ {m}
    /\ row' = IF IsOfQuery(r) /\ r.claim.batch = m.batch /\ r.claim.end = m.end /\ r.at < m.end
              THEN [row EXCEPT ![m.shard].at = m.end] ELSE row
    /\ UNCHANGED <<log, drv, tasks, other, done, runs, left>>

Plan(d) ==
  LET v == drv[d]
      known == KnownTo(d)
      held == {s \in v.held : v.pos[s] # Absent}
      ended == {s \in Shards : (Entry(d).start[s] = ShardEnd \/ (s \notin v.held /\ v.pos[s] = ShardEnd))
                               /\ \A c \in Children(s) : c \notin held} IN
  /\ v.mode = "settled"
  /\ v.at < Batches
  /\ \A s \in held : v.pos[s] # ShardEnd
  /\ \E reads \in SUBSET held :
       /\ reads # {}
       /\ IF Len(Entries(d)) # v.at THEN Refuse(d) /\ UNCHANGED log
          ELSE /\ log' = [log EXCEPT ![v.loc].entries = Append(@,
                    [batch |-> v.last + 1, run |-> v.run, reads |-> reads, ends |-> Nowhere, passed |-> {},
                     start |-> [s \in Shards |-> IF s \in held THEN v.pos[s] ELSE IF s \in ended THEN ShardEnd ELSE Absent]])]
               /\ drv' = [drv EXCEPT ![d].mode = "running", ![d].at = v.at + 1, ![d].ran = TRUE, ![d].got = {},
                                     ![d].last = v.last + 1,
                                     ![d].pos = [s \in Shards |-> IF s \in held \ reads THEN v.pos[s] ELSE Absent]]
  /\ UNCHANGED <<row, tasks, late, other, done, runs, left>>

-----------------------------------------------------------------------------
(* Disturbances: a driver that ends at any moment, whose tasks go on; a    *)
(* location that goes back to an earlier state; a copy of a location.      *)

Crash(d) ==
  /\ Alive(d) /\ Spend("crash")
  /\ drv' = [drv EXCEPT ![d] = [Down EXCEPT !.loc = drv[d].loc, !.run = drv[d].run]]
  /\ UNCHANGED <<row, log, tasks, late, other, done, runs>>

Earlier(l) == {<<n, c>> \in (1..Len(log[l].entries)) \X (0..log[l].committed) : n - c \in {0, 1}}

SetBack(l) ==
  /\ Spend(IF tasks = {} THEN "restore" ELSE "early restore")
  /\ \A d \in Drivers : drv[d].loc = l => ~Alive(d)
  /\ \E state \in Earlier(l) :
       log' = [log EXCEPT ![l] = [entries |-> SubSeq(@.entries, 1, state[1]), committed |-> state[2]]]
  /\ UNCHANGED <<row, drv, tasks, late, other, done, runs>>

Copy ==
  /\ Spend("copy")
  /\ drv[2].run = 0 /\ drv[2].loc = 1
  /\ log[1].entries # <<>>
  /\ log' = [log EXCEPT ![2] = log[1]]
  /\ drv' = [drv EXCEPT ![2].loc = 2]
  /\ UNCHANGED <<row, tasks, late, other, done, runs>>

DriverStep(d) ==
  \/ Start(d) \/ RefuseToBegin(d) \/ Joined(d) \/ Commit(d) \/ Settle(d) \/ Plan(d)
  \/ \E s \in Shards :
       \/ Reset(d, s) \/ Take(d, s) \/ Drop(d, s) \/ Release(d, s) \/ End(d, s)
       \/ Fetch(d, s) \/ FixEnd(d, s) \/ Promote(d, s)

Next ==
  \/ \E d \in Drivers : DriverStep(d) \/ Crash(d)
  \/ \E t \in tasks : Claim(t) \/ Judge(t)
  \/ \E s \in Shards : OtherTake(s) \/ OtherRead(s) \/ OtherStop(s)
  \/ \E l \in Locations : SetBack(l)
  \/ Arrive \/ Copy

Spec == Init /\ [][Next]_vars

(* A driver, its tasks and the other worker go on; a driver that ended      *)
(* begins again.                                                           *)
FairSpec ==
  /\ Spec
  /\ \A d \in Drivers :
       /\ WF_vars(Start(d)) /\ WF_vars(Joined(d)) /\ WF_vars(Commit(d)) /\ WF_vars(Settle(d)) /\ WF_vars(Plan(d))
       /\ \A s \in Shards :
            /\ WF_vars(Reset(d, s)) /\ WF_vars(Take(d, s)) /\ WF_vars(Drop(d, s)) /\ WF_vars(End(d, s))
            /\ WF_vars(Fetch(d, s)) /\ WF_vars(FixEnd(d, s)) /\ WF_vars(Promote(d, s))
  /\ WF_vars(\E t \in tasks : Claim(t) \/ Judge(t))
  /\ \A s \in Shards : WF_vars(OtherRead(s)) /\ WF_vars(OtherStop(s))

-----------------------------------------------------------------------------
(* The promises.                                                           *)

(* Every execution of a batch holds the same records of a shard.           *)
SameRecords ==
  \A l \in Locations : \A i \in 1..Len(log[l].entries) : \A s \in Shards : log[l].entries[i].ends[s] # Differ

(* Records that the batches before the i-th of a line of history, or the   *)
(* other worker, have passed on.                                           *)
Passed(l, i, s) ==
  other[s].read \cup
  UNION {Span(log[l].entries[j].start[s], log[l].entries[j].ends[s]) :
    j \in {k \in 1..(i - 1) : s \in log[l].entries[k].passed}}

(* Whatever a batch starts behind is passed on: none is skipped.           *)
NothingSkipped ==
  \A l \in Locations : \A i \in 1..Len(log[l].entries) : \A s \in Shards :
    LET start == log[l].entries[i].start[s] IN
    start # Absent => Span(0, start) \subseteq Passed(l, i, s)

(* No record is in two committed batches of one line of history.           *)
NothingRepeated ==
  \A l \in Locations : \A i \in 1..Len(log[l].entries) : \A j \in 1..(i - 1) : \A s \in log[l].entries[j].passed :
    log[l].entries[i].start[s] >= log[l].entries[j].ends[s]

(* A driver ends with an error only if there is another one, or was.  One  *)
(* exception: an attempt of a batch whose rows an action left unread       *)
(* claims after the shard was another worker's.  A location that is        *)
(* restored while tasks of its last driver go on has another driver.       *)
NoFalseAlarm ==
  (\E d \in Drivers : drv[d].mode = "refused") => Kinds \cap {"start", "copy", "early restore", "unread"} # {}

(* A checkpoint covers committed and handled records only.                 *)
NothingLost == \A s \in Shards : row[s].exists => Span(0, row[s].at) \subseteq done[s]

(* A batch reads a child after all of its parents are passed on.           *)
ChildrenAfterParents ==
  \A l \in Locations : \A i \in 1..Len(log[l].entries) : \A s \in log[l].entries[i].reads : \A p \in Parents[s] :
    1..Records \subseteq Passed(l, i, p)

(* Only the reset of a location that was set back moves a checkpoint back. *)
NeverBack ==
  [][\A s \in Shards : row'[s].at < row[s].at => \E d \in Drivers : drv[d].mode = "joining" /\ GoesBack(d, s)]_vars

(* A claim that holds records is the reader's, and begins where no other   *)
(* worker has read on.                                                     *)
ReadersClaim ==
  [][\A s \in Shards :
       LET claim == row'[s].claim IN
       claim.run # 0 /\ Identity(claim) # Identity(row[s].claim) /\ claim.end > claim.start /\ row'[s].holder # Nobody
         => row[s].holder # Other /\ row[s].at <= claim.start]_vars

(* A driver goes on behind a batch when its end is claimed in each shard   *)
(* that is the query's.                                                    *)
EndsAreFixed ==
  [][\A d \in Drivers : drv[d].mode = "done" /\ drv'[d].mode = "settled" =>
       \A s \in Entry(d).reads : IsOfQuery(row[s]) =>
         EndOf(row[s].claim, Entry(d).batch, Entry(d).start[s], Entry(d).run) # Absent]_vars

(* Liveness, once the disturbances are over: every shard is read to its    *)
(* end, if each read finds something.                                      *)
EverythingIsRead == <>[](\A s \in Shards : row[s].exists /\ row[s].at = ShardEnd)

(* Whatever is passed on becomes the checkpoint.                           *)
CheckpointsFollow == <>[](\A s \in Shards : \A k \in done[s] : k <= row[s].at)

=============================================================================
