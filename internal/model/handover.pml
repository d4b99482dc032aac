/*
 * The hand-over of a failed message, as a model for spin. `make model` searches all of its states.
 * docs/notes/architecture.md says in a section of its own what follows from it, and what does not.
 *
 * A copy is a message in a queue, at a consumer, in a wait queue, or stranded. Every step is what the
 * broker, a consumer process or a fault does at once. Any step may follow any other: no order and no
 * time is assumed. A step of the library names the functions that it stands for, behind their file;
 * a test looks for them there. Steps without a name are the broker's, the faults and the operator's.
 *
 * What is left out or simplified, and why:
 *
 * - Time. A TTL, a hold, a drain or a consumer timeout may end at any moment, because the promises
 *   must hold for every duration.
 * - A message is its identity, its counted failures, the broker's delivery count and the mark of the
 *   crash guard. Nothing else decides what the library does with a delivery.
 * - MAX is 2 attempts, MARKS is 1 isolation (4 in the code), the guard suspects from a count of 1
 *   (5 in the code), a process has 1 place and a prefetch of 2. With larger numbers the same steps
 *   repeat.
 * - The broker counts as RabbitMQ before 4.3: every end of a delivery but an ack (F34). 4.3 counts
 *   less, so it allows no more. The queue has no dead-letter exchange: at its limit a copy is gone.
 * - LIMIT, the queue's delivery limit, is as large as the counted faults need. docs/guarantees.md has
 *   the outages that a smaller one endures. For the same reason a restart in an outage, and a hold
 *   that ends while copies alone are refused, are faults: each costs a delivery.
 * - A wait queue or a dead-letter queue vanishes only while it is empty: what is inside is lost (F10).
 * - A wait is longer than the way of a confirm and an ack: a copy comes back when its delivery has
 *   ended, or when the confirm is late for a fault. So the copies of a message stay few.
 * - A late confirm is no fault: the outcome stays open. It becomes one if a scout is sent, or if the
 *   hold or the drain ends first. Which of the open publishes is the scout is not there. What the broker does with a publish of a dead channel is decided when the channel dies.
 * - A handler whose delivery was taken back ends without effect: its context is done.
 * - One wait queue stands for all, because each wait is one hop of the same kind. A round of a long
 *   wait is a snooze without a handler.
 * - The lanes of the publisher are not there: they change when a publish is written, not its outcome.
 * - The guard's time is not there: a suspect may be isolated or tried.
 */

#ifndef MESSAGES
#define MESSAGES  2
#endif
#define CONSUMERS 2
#define PREFETCH  2
#define MAX       2          /* attempts */
#define MARKS     1          /* isolations */
#ifndef LIMIT
#define LIMIT     5          /* deliveries that may be given back */
#endif
#define NEAR      (LIMIT / 2)  /* endangered from this count on */
#ifndef COPIES
#define COPIES    6          /* slots: copies of all messages, with those on their way out */
#endif
#ifndef FAULTS
#define FAULTS    2
#endif

/* copy.at */
#define FREE     0
#define QUEUE    1
#define CONSUMER 2
#define WAITING  3
#define STRANDED 4
#define STALE    5  /* no copy: a process works on a delivery that the broker has taken back */

/* copy.stage, of a copy at a consumer */
#define READY    0  /* prefetched */
#define HANDLING 1
#define DECIDED  2  /* its copy is to be published: held, if that fails */
#define WRITTEN  3  /* the copy is published and its outcome open */
#define STORED   4  /* the confirm is on its way */
#define RETURNED 5  /* the return and the confirm are on their way (F4) */
#define SILENT   7  /* the confirm is lost (F29) */
#define ACKING   8  /* settled: the ack is to be written */

/* copy.what, the decision */
#define NONE     0
#define RETRY    1
#define SNOOZE   2
#define ISOLATE  3  /* a snooze that marks */
#define BURY     4  /* to the dead-letter queue */
#define PUTBACK  5  /* a snooze in place of a nack, with one try */

typedef Copy {
	unsigned at : 3;
	unsigned msg : 1;
	unsigned by : 1;        /* the consumer */
	unsigned stage : 4;
	unsigned what : 3;
	unsigned failures : 2;  /* counted, as its header says */
	unsigned count : 4;     /* the broker's delivery count */
	unsigned marks : 2;     /* of the crash guard */
	unsigned younger : 1;   /* delivered after another open delivery of its channel */
	unsigned held : 1;      /* its hold has ended in an outage since it waited last */
	unsigned fresh : 1;     /* published while its consumer is suspended */
	unsigned failed : 1;    /* truth: its handler has failed in this delivery */
	unsigned safe : 1       /* truth: handled, or another durable copy exists */
}
Copy x[COPIES];

typedef Process {
	unsigned closing : 1;
	unsigned suspended : 1; /* does not consume, because of an outage */
	unsigned probing : 1;   /* has one message nevertheless */
	/* These follow from the copies; check counts them. */
	unsigned open : 3;      /* deliveries */
	unsigned ready : 3;     /* of them prefetched */
	unsigned busy : 1;      /* its place is taken, or a suspect is tried */
	unsigned acking : 1
}
Process p[CONSUMERS];

/* outage */
#define BLOCKED  1  /* nothing can be published */
#define REFUSING 2  /* all copies are refused */
#define NOBURIAL 3  /* dead letters are refused */
/* away */
#define DOWN     1  /* the queue is not there when a wait ends */
#define UNBOUND  2  /* the way back has no binding */

unsigned outage : 2;
unsigned away : 2;
bit waiting;               /* a copy waits; check sets it */
bit settling[2];           /* a delivery whose copy is stored is about to be acked; check sets it */
bit nowait, nodead;        /* the wait queue, the dead-letter queue has vanished */
bit calm;                  /* no fault begins any more, and no shutdown */
bit entered[2];
bit ended[2];              /* handled, or in the dead-letter queue */
short unexplained[2];      /* copies that no fault explains */

/* kinds of faults */
#define KILL    0
#define TAKEN   1  /* consuming channel lost, or frozen beyond the consumer timeout */
#define CHANNEL 2  /* publishing channel lost */
#define OUTAGE  3
#define VANISH  4
#define AWAY    5
#define SILENCE 6  /* a confirm is lost, or comes after the scout, the hold or the drain */
#define RESENT  7  /* at-least-once dead-lettering sends again (F18) */
#define COSTLY  8  /* a restart in an outage; a hold that ends while copies alone are refused */
#ifdef ONLY
#define POSSIBLE(kind) (!calm && kind == ONLY)
#else
#define POSSIBLE(kind) (!calm)
#endif
byte left = FAULTS;
#define MAY(kind)   (POSSIBLE(kind) && left > 0)
#define SPEND(kind) left--

byte i, j, n;  /* zero between steps */
int k, l;

#define HERE(s)     (x[s].at == CONSUMER)
#define IS(s, st)   (x[s].at == CONSUMER && x[s].stage == st)
#define COUNTED(s)  (x[s].count > 0 || x[s].marks > 0)
#define KEY(s) (x[s].at + (x[s].msg << 3) + (x[s].by << 4) + (x[s].stage << 5) + (x[s].what << 9) \
	+ (x[s].failures << 12) + (x[s].count << 14) + (x[s].marks << 18) + (x[s].younger << 20) \
	+ (x[s].failed << 21) + (x[s].safe << 22) + (x[s].held << 23) + (x[s].fresh << 24))

#define PKEY(c) (p[c].closing + (p[c].suspended << 1) + (p[c].probing << 2) + (p[c].open << 3) \
	+ (p[c].ready << 6) + (p[c].busy << 9) + (p[c].acking << 10))
#define MKEY(m) ((ended[m] << 28) + (entered[m] << 27))

inline set_process(c, v) {
	p[c].closing = v & 1; p[c].suspended = (v >> 1) & 1; p[c].probing = (v >> 2) & 1;
	p[c].open = (v >> 3) & 7; p[c].ready = (v >> 6) & 7; p[c].busy = (v >> 9) & 1;
	p[c].acking = (v >> 10) & 1
}

inline set(s, v) {
	x[s].at = v & 7; x[s].msg = (v >> 3) & 1; x[s].by = (v >> 4) & 1; x[s].stage = (v >> 5) & 15;
	x[s].what = (v >> 9) & 7; x[s].failures = (v >> 12) & 3; x[s].count = (v >> 14) & 15;
	x[s].marks = (v >> 18) & 3; x[s].younger = (v >> 20) & 1; x[s].failed = (v >> 21) & 1;
	x[s].safe = (v >> 22) & 1; x[s].held = (v >> 23) & 1; x[s].fresh = (v >> 24) & 1
}

/* check ends a step: the promises, and one order of the slots for all states that differ in it alone. */
inline check() {
	i = 0;
	do
	:: i < MESSAGES ->
		assert(unexplained[i] == 0);   /* copies are bounded by faults */
		n = ended[i] || !entered[i];
		j = 0;
		do
		:: j < COPIES ->
			if
			:: x[j].at != FREE && x[j].at != STALE && x[j].msg == i -> n = 1
			:: else
			fi;
			j++
		:: else -> break
		od;
		assert(n == 1);                /* never gone */
		i++
	:: else -> break
	od;
	waiting = 0; settling[0] = 0; settling[1] = 0;
	i = 0;
	do
	:: i < CONSUMERS -> p[i].open = 0; p[i].ready = 0; p[i].busy = 0; p[i].acking = 0; i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < COPIES ->
		n = x[i].by;
		if
		:: x[i].at == WAITING -> waiting = 1
		:: HERE(i) ->
			p[n].open = p[n].open + 1;
			x[i].fresh = x[i].fresh && p[n].suspended && x[i].stage > DECIDED && x[i].stage < ACKING;
			if
			:: x[i].stage == READY -> p[n].ready = p[n].ready + 1
			:: x[i].stage == ACKING -> p[n].acking = 1; settling[x[i].msg] = 1
			:: x[i].stage == STORED -> settling[x[i].msg] = 1;
				if
				:: COUNTED(i) -> p[n].busy = 1
				:: else
				fi
			:: x[i].stage == HANDLING || x[i].stage == DECIDED && x[i].what != PUTBACK ||
				COUNTED(i) && x[i].stage > READY && x[i].stage < ACKING -> p[n].busy = 1
			:: else
			fi
		:: else
		fi;
		i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < CONSUMERS ->
		if
		:: p[i].open == 0 || !p[i].suspended -> p[i].probing = 0
		:: else
		fi;
		i++
	:: else -> break
	od;
	/* The consumers are alike, and so are the messages: one order of them stands for all. */
	k = PKEY(0); l = PKEY(1);
	if
	:: k < l ->
		set_process(0, l);
		set_process(1, k);
		i = 0;
		do
		:: i < COPIES ->
			if
			:: HERE(i) || x[i].at == STALE -> x[i].by = 1 - x[i].by
			:: else
			fi;
			i++
		:: else -> break
		od
	:: else
	fi;
#if MESSAGES > 1
	k = MKEY(0); l = MKEY(1);
	i = 0;
	do
	:: i < COPIES ->
		n = x[i].msg;
		if
		:: x[i].at != FREE && n == 0 -> k = k + (KEY(i) | 8)
		:: x[i].at != FREE && n == 1 -> l = l + (KEY(i) | 8)
		:: else
		fi;
		i++
	:: else -> break
	od;
	if
	:: k < l ->
		i = 0;
		do
		:: i < COPIES ->
			if
			:: x[i].at != FREE -> x[i].msg = 1 - x[i].msg
			:: else
			fi;
			i++
		:: else -> break
		od;
		n = ended[0]; ended[0] = ended[1]; ended[1] = n;
		n = entered[0]; entered[0] = entered[1]; entered[1] = n;
		n = settling[0]; settling[0] = settling[1]; settling[1] = n
	:: else
	fi;
#endif
	i = 1;
	do
	:: i < COPIES ->
		k = KEY(i);
		j = i;
		do
		:: j > 0 ->
			l = KEY(j - 1);
			if
			:: l < k -> set(j, l); j--
			:: else -> break
			fi
		:: else -> break
		od;
		set(j, k);
		i++
	:: else -> break
	od;
	i = 0; j = 0; n = 0; k = 0; l = 0
}

/* forget clears what a delivery knows beside its message. */
inline forget(s) {
	x[s].by = 0; x[s].stage = READY; x[s].what = NONE; x[s].younger = 0; x[s].fresh = 0;
	x[s].failed = 0; x[s].safe = 0
}

/* clear frees a slot. A copy must be safe when it goes. */
inline clear(s) { set(s, 0) }

/* older makes the other delivery of a channel the oldest, when the oldest has ended. */
inline older(c) {
	j = 0;
	do
	:: j < COPIES ->
		if
		:: HERE(j) && x[j].by == c -> x[j].younger = 0
		:: else
		fi;
		j++
	:: else -> break
	od
}

/* requeue gives a delivery back. The broker counts it, and drops the copy at the limit.
 * internal/consumer/delivery.go: giveBack */
inline requeue(s) {
	unexplained[x[s].msg] = unexplained[x[s].msg] + x[s].safe;  /* the message is there once more */
	n = x[s].by;
	forget(s);
	assert(x[s].count < LIMIT);  /* else it is dropped */
	x[s].at = QUEUE; x[s].count = x[s].count + 1;
	older(n)
}

/* lose does the same for a fault, which explains the other copy if there is one. */
inline lose(s) {
	unexplained[x[s].msg] = unexplained[x[s].msg] - x[s].safe;
	requeue(s)
}

/* again lets a delivery hand over once more after a fault.
 * internal/consumer/handover.go: earlier */
inline again(s) { x[s].safe = 0; x[s].stage = DECIDED }

/* ack removes a delivery.
 * internal/consumer/delivery.go: ack
 * internal/consumer/decisions.go: ackAfter */
inline ack(s) { assert(x[s].safe); clear(s) }

/* putback brings a delivery back for a reason that must not count. The first time may.
 * internal/consumer/crash.go: putBack, counted */
inline putback(s) {
	if
#ifndef MUT_SHUTDOWN_COUNTS
	:: COUNTED(s) -> x[s].what = PUTBACK; x[s].stage = DECIDED
#endif
	:: else -> requeue(s)
	fi
}

/* store makes the copy that s asks for: in a wait queue, or as a dead letter. */
inline store(s) {
	assert(x[s].what != RETRY || x[s].failed);                             /* no attempt without a call */
	assert(x[s].what != RETRY || x[s].failures + 1 < MAX);
	assert(x[s].what != BURY || x[s].marks >= MARKS && x[s].count > 0 &&   /* no crash loop without a crash */
		(!x[s].held || x[s].marks >= 2 * MARKS) ||
		x[s].failed && x[s].failures + 1 == MAX);
	unexplained[x[s].msg] = unexplained[x[s].msg] + 1;
	if
	:: x[s].what == BURY -> ended[x[s].msg] = 1
	:: else ->
		j = 0;
		do
		:: j < COPIES && x[j].at != FREE -> j++
		:: else -> break
		od;
		assert(j < COPIES);  /* no more copies than the slots */
		x[j].at = WAITING;
		x[j].msg = x[s].msg;
		x[j].failures = x[s].failures + (x[s].what == RETRY);
		x[j].marks = (x[s].what == RETRY -> 0 : (x[s].what == ISOLATE -> x[s].marks + 1 : x[s].marks))
	fi
}

/* Before 4.3 the end of a hold counts like the end of a process. */
#ifdef MUT_HOLD_IS_CRASH
#define DOUBTFUL(s)   0
#else
#define DOUBTFUL(s)   (x[s].held && x[s].marks < 2 * MARKS)
#endif
#define CULPRIT(s)    (x[s].count > 0 && x[s].marks >= MARKS && !DOUBTFUL(s))
#define ENDANGERED(s) (x[s].count >= NEAR && !CULPRIT(s))
#define GONE(s)       (x[s].what == BURY && nodead || x[s].what != BURY && nowait)
#define REFUSES(s)    (outage == REFUSING || outage == NOBURIAL && x[s].what == BURY)
#define MINE          p[x[S].by]
#define S             _pid
#define TAKES(c)      (x[S].at == QUEUE && !p[c].closing && p[c].open < PREFETCH && (!p[c].suspended || \
	p[c].open == 0 && outage != BLOCKED && x[S].count + 1 < LIMIT))  /* a probe is one message */
#define DELIVER(c)    p[c].probing = p[c].suspended; x[S].at = CONSUMER; x[S].by = c; x[S].stage = READY; x[S].younger = (p[c].open > 0)
#define DECIDE(w)     x[S].what = w; x[S].stage = DECIDED

/* What happens to one copy. */
active [COPIES] proctype copy() {
end:	do
	/* The broker delivers.
	 * internal/consumer/receive.go: delivered, arrived */
	:: d_step { TAKES(0) -> DELIVER(0); check() }
	:: d_step { TAKES(1) -> DELIVER(1); check() }

	/* The crash guard, before a handler.
	 * internal/consumer/crash.go: judge, giveUp, isolated, isolateOnce, rescued */
	:: d_step { IS(S, READY) && CULPRIT(S) ->
#ifdef MUT_GUARD_DROPS
		ack(S);
#else
		DECIDE(BURY);
#endif
		check() }
	:: d_step { IS(S, READY) && !CULPRIT(S) && x[S].count > 0 && (ENDANGERED(S) || !MINE.busy) ->
		DECIDE(ISOLATE); check() }

	/* The handler.
	 * internal/consumer/receive.go: mayBegin, take
	 * internal/consumer/delivery.go: process
	 * internal/consumer/decisions.go: nacked, snoozed
	 * middleware/retry.go: Middleware, pastLimit, settle
	 * middleware/decide.go: decide */
	:: d_step { IS(S, READY) && !CULPRIT(S) && !ENDANGERED(S) && !MINE.busy && !MINE.closing &&
			(!MINE.suspended || MINE.probing) ->
		assert(x[S].failures < MAX);
		x[S].stage = HANDLING; check() }
	:: d_step { IS(S, HANDLING) ->
		ended[x[S].msg] = 1; x[S].safe = 1; x[S].stage = ACKING; check() }
	:: d_step { IS(S, HANDLING) ->
		x[S].failed = 1;
#ifdef MUT_NO_LAST_ATTEMPT
		DECIDE(RETRY);
#else
		if
		:: x[S].failures + 1 < MAX -> DECIDE(RETRY)
		:: else -> DECIDE(BURY)
		fi;
#endif
		check() }
	:: d_step { IS(S, HANDLING) && !calm -> DECIDE(SNOOZE); check() }  /* nacked by the router */

	/* The copy is published. Its place is free from here on.
	 * middleware/republish.go: handOver
	 * internal/consumer/handover.go: republish, deadLetter, publish, AfterWrite
	 * internal/publisher/confirmed.go: PublishFor, start, send */
	:: d_step { IS(S, DECIDED) && outage != BLOCKED ->
		x[S].stage = WRITTEN; x[S].fresh = MINE.suspended;
#ifdef MUT_ACK_AT_WRITE
		x[S].stage = ACKING;
#endif
#ifdef MUT_SNOOZE_ACKS_EARLY
		if
		:: x[S].what == SNOOZE || x[S].what == PUTBACK -> x[S].stage = ACKING
		:: else
		fi;
#endif
		check() }
#ifdef MUT_ACK_BEFORE_PUBLISH
	:: d_step { IS(S, DECIDED) -> x[S].stage = ACKING; check() }
#endif

	/* The broker answers the publish. */
	:: d_step { IS(S, WRITTEN) && outage != BLOCKED ->
		if
		:: REFUSES(S) -> x[S].stage = DECIDED  /* it is held */
		:: !REFUSES(S) && GONE(S) -> x[S].stage = RETURNED
		:: else ->
			store(S);
			x[S].stage = STORED; x[S].safe = 1;
			unexplained[x[S].msg] = unexplained[x[S].msg] - 1  /* in place of the delivery */
		fi;
		check() }
#ifdef MUT_SECOND_COPY
	:: d_step { IS(S, WRITTEN) && outage != BLOCKED && !REFUSES(S) && !GONE(S) -> store(S); check() }
#endif

	/* The publisher reads the answer. What is missing is declared again.
	 * internal/publisher/confirmed.go: outcome, answer, takeReturn
	 * internal/consumer/handover.go: publish, learn
	 * internal/consumer/outage.go: note */
	:: d_step { IS(S, STORED) ->
		x[S].stage = ACKING;
#ifdef MUT_LATE_CONFIRM_ENDS
		MINE.suspended = 0;
#else
		MINE.suspended = MINE.suspended && !x[S].fresh;  /* a copy was stored: the outage is over */
#endif
#ifdef MUT_CONFIRM_OF_ANOTHER
		i = 0;
		do
		:: i < COPIES ->
			if
			:: IS(i, WRITTEN) && x[i].by == x[S].by -> x[i].stage = ACKING
			:: else
			fi;
			i++
		:: else -> break
		od;
#endif
#ifdef MUT_NACK_AFTER_CONFIRM
		requeue(S);
#endif
		check() }
	:: d_step { IS(S, RETURNED) ->
#ifdef MUT_RETURN_IGNORED
		x[S].stage = ACKING;
#else
		if
		:: x[S].what == BURY -> nodead = 0  /* declared again */
		:: else -> nowait = 0
		fi;
		x[S].stage = DECIDED;
#endif
		check() }

	/* The hold ends.
	 * internal/hold/hold.go: Do
	 * internal/consumer/decisions.go: settle, snoozeAtLast
	 * internal/consumer/outage.go: suspend, begin */
	:: d_step { IS(S, DECIDED) && x[S].what != PUTBACK && !MINE.closing && outage == BLOCKED ->
#ifndef MUT_HOLD_REQUEUES
		MINE.suspended = 1;
#endif
		x[S].held = 1; requeue(S); check() }
	:: d_step { IS(S, DECIDED) && x[S].what != PUTBACK && !MINE.closing && outage == REFUSING &&
			MAY(COSTLY) -> SPEND(COSTLY); MINE.suspended = 1; x[S].held = 1; requeue(S); check() }
	:: d_step { IS(S, DECIDED) && x[S].what == BURY && !MINE.closing && outage == NOBURIAL ->
		x[S].what = SNOOZE; check() }
#ifdef MUT_LAST_TRY_ALWAYS
	:: d_step { IS(S, DECIDED) && x[S].what == BURY -> x[S].what = SNOOZE; check() }
#endif
#ifndef MUT_LOST_STAYS
	:: d_step { IS(S, SILENT) && !MINE.closing && x[S].what != PUTBACK ->
		x[S].what = SNOOZE; again(S); check() }
	/* Or, before its end, the copy is the scout.
	 * internal/publisher/pending.go: Await, givesUp, Release */
	:: d_step { IS(S, SILENT) -> again(S); check() }
#endif

	/* Put back: an outage, a shutdown. The handler may still run.
	 * internal/consumer/receive.go: release, putAllBack, leaveDecoding
	 * internal/consumer/crash.go: putBack, abandon
	 * internal/consumer/outage.go: wait */
	:: d_step { IS(S, READY) && (MINE.closing || MINE.suspended && !MINE.probing) -> putback(S); check() }
	:: d_step { IS(S, HANDLING) && MINE.closing ->  /* the drain is over */
#ifdef MUT_SHUTDOWN_FAILS
		DECIDE(RETRY);
#else
		putback(S);
#endif
		check() }
	:: d_step { IS(S, DECIDED) && (MINE.closing || x[S].what == PUTBACK) && outage != 0 ->
		requeue(S); check() }
	:: d_step { IS(S, SILENT) && (MINE.closing || x[S].what == PUTBACK) -> lose(S); check() }

	/* The wait is over. At-least-once keeps a copy whose target is down (F5, F23). */
	:: d_step { x[S].at == WAITING && away == 0 && !settling[x[S].msg] -> x[S].at = QUEUE; check() }
	:: d_step { x[S].at == WAITING && away == UNBOUND && !settling[x[S].msg] ->
#ifdef MUT_STRANDED_DROPPED
		clear(S);
#else
		x[S].at = STRANDED;
#endif
		check() }
#ifdef MUT_AT_MOST_ONCE
	:: d_step { x[S].at == WAITING && away == DOWN -> clear(S); check() }
#endif
	:: d_step { x[S].at == STRANDED && away == 0 -> x[S].at = QUEUE; check() }  /* the operator */

	/* A delivery that the broker has taken back: a publish or an ack that was under way.
	 * internal/consumer/handover.go: send
	 * internal/consumer/delivery.go: ack */
	:: d_step { x[S].at == STALE && x[S].stage == DECIDED && outage == 0 && !GONE(S) ->
		store(S);
		unexplained[x[S].msg] = unexplained[x[S].msg] - 1;  /* its consumer was frozen */
		clear(S); check() }
	:: d_step { x[S].at == STALE ->  /* nothing is published, and the ack settles nothing */
#ifdef MUT_LATE_ACK
		i = 0;
		do
		:: i < COPIES ->
			if
			:: x[S].stage == ACKING && HERE(i) && x[i].by == x[S].by && !x[i].younger -> ack(i)
			:: else
			fi;
			i++
		:: else -> break
		od;
#endif
		clear(S); check() }

	/* Faults of one copy. */
	:: d_step { (IS(S, WRITTEN) || IS(S, STORED)) && MAY(SILENCE) ->
		SPEND(SILENCE); x[S].stage = SILENT; check() }
	:: d_step { x[S].at == WAITING && away == 0 && !settling[x[S].msg] && MAY(RESENT) ->
		SPEND(RESENT);
		j = 0;
		do
		:: j < COPIES && x[j].at != FREE -> j++
		:: else -> break
		od;
		assert(j < COPIES);
		k = KEY(S);
		set(j, k);
		x[j].at = QUEUE;
		check() }
	od
}

/* What happens to a process. */
active [CONSUMERS] proctype process() {
#define C (_pid - COPIES)
end:	do
	/* One ack for a run from the oldest delivery on, single ones for the others.
	 * internal/consumer/acks.go: want, flush, run */
	:: d_step { p[C].acking ->
		i = 0;
		do
		:: i < COPIES ->
			if
			:: IS(i, ACKING) && x[i].by == C -> ack(i)
#ifdef MUT_MULTIPLE_OVER_OPEN
			:: HERE(i) && x[i].by == C && x[i].stage != ACKING && !x[i].younger -> ack(i)
#endif
			:: else
			fi;
			i++
		:: else -> break
		od;
		older(C);
		check() }

	/* Messages can be stored again.
	 * internal/consumer/outage.go: awaitStorage, canStore, quiet, end
	 * internal/consumer/receive.go: probes */
#ifndef MUT_NEVER_RESUMES
	:: d_step { p[C].suspended && outage == 0 && (p[C].probing || p[C].ready == 0) -> p[C].suspended = 0; check() }
#endif

	/* Shutdown, and the next start.
	 * internal/consumer/subscription.go: run, Cancel, New */
	:: d_step { !calm && !p[C].closing && p[C].open > 0 && (outage == 0 || MAY(COSTLY)) ->
		if
		:: outage != 0 -> SPEND(COSTLY)
		:: else
		fi;
		p[C].closing = 1; check() }
	:: d_step { p[C].closing && p[C].open == 0 ->
		i = 0;
		do
		:: i < COPIES ->
			if
			:: x[i].at == STALE && x[i].by == C -> clear(i)
			:: else
			fi;
			i++
		:: else -> break
		od;
		p[C].closing = 0; p[C].suspended = 0; check() }

	/* Faults. */
	:: d_step { MAY(KILL) && p[C].open > 0 ->
		SPEND(KILL);
		i = 0;
		do
		:: i < COPIES ->
			if
			:: HERE(i) && x[i].by == C -> lose(i)
			:: x[i].at == STALE && x[i].by == C -> clear(i)
			:: else
			fi;
			i++
		:: else -> break
		od;
		p[C].closing = 0; p[C].suspended = 0; check() }
	:: d_step { MAY(TAKEN) && p[C].open > 0 ->
		SPEND(TAKEN);
		i = 0;
		do
		:: i < COPIES ->
			if
			:: HERE(i) && x[i].by == C && (x[i].stage == DECIDED || x[i].stage == WRITTEN ||
				x[i].stage == ACKING) ->
				j = 0;
				do
				:: j < COPIES && x[j].at != FREE -> j++
				:: else -> break
				od;
				assert(j < COPIES);
				k = KEY(i);
				set(j, k);
				x[j].at = STALE;
				if
				:: x[j].stage == WRITTEN -> x[j].stage = DECIDED
				:: else
				fi;
				lose(i)
			:: HERE(i) && x[i].by == C && x[i].stage != DECIDED && x[i].stage != WRITTEN &&
				x[i].stage != ACKING -> lose(i)
			:: else
			fi;
			i++
		:: else -> break
		od;
		check() }
	:: d_step { MAY(CHANNEL) && p[C].open > p[C].ready ->
		SPEND(CHANNEL);
		i = 0;
		do
		:: i < COPIES ->
			if
			:: HERE(i) && x[i].by == C && x[i].stage >= WRITTEN && x[i].stage < ACKING ->
#ifdef MUT_CLOSE_IS_CONFIRM
				x[i].stage = ACKING
#else
				again(i)
#endif
			:: else
			fi;
			i++
		:: else -> break
		od;
		check() }
	od
}

/* Producer, broker, operator. */
active proctype world() {
end:	do
	:: d_step { !entered[0] -> entered[0] = 1; x[COPIES - 1].at = QUEUE; check() }
#if MESSAGES > 1
	:: d_step { !entered[1] -> entered[1] = 1; x[COPIES - 1].at = QUEUE; x[COPIES - 1].msg = 1; check() }
#endif
	:: d_step { outage == 0 && MAY(OUTAGE) -> SPEND(OUTAGE); outage = BLOCKED }
	:: d_step { outage == 0 && MAY(OUTAGE) -> SPEND(OUTAGE); outage = REFUSING }
	:: d_step { outage == 0 && MAY(OUTAGE) -> SPEND(OUTAGE); outage = NOBURIAL }
	:: d_step { outage != 0 -> outage = 0 }
	:: d_step { !nowait && MAY(VANISH) && !waiting -> SPEND(VANISH); nowait = 1 }
	:: d_step { !nodead && MAY(VANISH) -> SPEND(VANISH); nodead = 1 }
	:: d_step { away == 0 && MAY(AWAY) -> SPEND(AWAY); away = DOWN }
	:: d_step { away == 0 && MAY(AWAY) -> SPEND(AWAY); away = UNBOUND }
	:: d_step { away != 0 -> away = 0 }
#ifdef LIVENESS
	:: d_step { !calm -> calm = 1; outage = 0; away = 0 }
#endif
#ifdef LIVENESS
	:: timeout -> assert(entered[0] && ended[0] && (MESSAGES < 2 || entered[1] && ended[1]) && x[0].at == FREE);  /* no message is stuck */
		break
#endif
	od
}

#ifdef LIVENESS
ltl ends { [] (calm -> <> (entered[0] && ended[0] && x[0].at == FREE)) }
#endif
