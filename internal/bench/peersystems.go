package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
	"golang.org/x/sync/errgroup"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/topology"
)

// allPeers have a job on disk when they say that it is enqueued, unless their names say otherwise.
// All other settings are the defaults of each system.
var allPeers = []peer{
	{"millpond, quorum", rabbit(topology.Quorum), fillRabbit, workMillpond(topology.Quorum)},
	{"millpond, classic", rabbit(topology.Classic), fillRabbit, workMillpond(topology.Classic)},
	{"river", postgres, fillRiver, workRiver},
	{"watermill SQL requeuer", postgres, fillSQL, workSQL},
	{"asynq, fsync always", redis("always"), fillAsynq, workAsynq},
	{"asynq, fsync each second", redis("everysec"), fillAsynq, workAsynq},
}

// peerServer is a server with nothing in it.
type peerServer struct {
	url       string
	processes func() []int
	end       func() error
}

const peerQueue = "jobs"

var peerPolicy = backoff.List{peerDelay, peerDelay, peerDelay, peerDelay, peerDelay}

func rabbit(kind topology.QueueType) func(context.Context, *bench) (*peerServer, error) {
	return func(_ context.Context, b *bench) (*peerServer, error) {
		plan, err := topology.PlanFor(topology.PerQueue{Type: kind}, peerQueue, peerPolicy)
		if err != nil {
			return nil, err
		}
		queues := []string{peerQueue}
		for _, q := range plan.Queues {
			queues = append(queues, q.Name)
		}
		return &peerServer{
			url:       b.broker.node.URL(),
			processes: func() []int { return []int{b.broker.node.Pid()} },
			end:       func() error { return b.broker.delete(queues...) },
		}, b.broker.declare(peerQueue, amqp.Table{"x-queue-type": string(kind)})
	}
}

func fillRabbit(_ context.Context, url string, batches iter.Seq2[int, int]) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	b := &broker{conn: conn}
	for first, n := range batches {
		err = errors.Join(err, b.fill(peerQueue, first, n, usual))
	}
	return err
}

func workMillpond(kind topology.QueueType) workFunc {
	args := amqp.Table{"x-queue-type": string(kind)}
	return func(ctx context.Context, url string, atOnce int, handle func(int) error) error {
		_, err := serveMillpondOn(ctx, url, topology.PerQueue{Type: kind}, args, peerPolicy, work{
			queue: peerQueue, inFlight: atOnce, prefetch: 2 * atOnce, settled: func([]byte) {},
			handle: func(body []byte) error { return handle(number(body)) },
		})
		return err
	}
}

// postgres empties the server that PGHOST and its like name, and lets river declare its tables.
func postgres(ctx context.Context, _ *bench) (*peerServer, error) {
	pool, err := pgxpool.New(ctx, "")
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "DROP SCHEMA public CASCADE; CREATE SCHEMA public"); err != nil {
		return nil, fmt.Errorf("PostgreSQL, which make bench-peers starts: %w", err)
	}
	var server int
	if err := pool.QueryRow(ctx, `SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1)::int
		WHERE current_setting('fsync') = 'on'`).Scan(&server); err != nil {
		return nil, fmt.Errorf("PostgreSQL must run with fsync: %w", err)
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return nil, err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return &peerServer{
		processes: func() []int { return children(server) }, end: func() error { return nil },
	}, err
}

type riverJob struct {
	Body []byte `json:"body"`
}

func (riverJob) Kind() string { return peerQueue }

type riverDelay struct{}

func (riverDelay) NextRetry(*rivertype.JobRow) time.Time { return time.Now().Add(peerDelay) }

func openRiver(ctx context.Context, cfg river.Config) (*river.Client[pgx.Tx], error) {
	pool, err := pgxpool.New(ctx, "")
	if err != nil {
		return nil, err
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	return river.NewClient(riverpgxv5.New(pool), &cfg)
}

func fillRiver(ctx context.Context, _ string, batches iter.Seq2[int, int]) error {
	client, err := openRiver(ctx, river.Config{})
	if err != nil {
		return err
	}
	inBase64 := load{bytes: usual.bytes * 3 / 4}
	for first, n := range batches {
		jobs := make([]river.InsertManyParams, n)
		for i := range jobs {
			jobs[i].Args = riverJob{inBase64.numbered(first + i).Body}
		}
		if _, err := client.InsertManyFast(ctx, jobs); err != nil {
			return err
		}
	}
	return nil
}

// workRiver fetches as often as river allows: as it comes, it would wait for 100 ms between two
// fetches of at most atOnce jobs.
func workRiver(ctx context.Context, _ string, atOnce int, handle func(int) error) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, j *river.Job[riverJob]) error {
		return handle(number(j.Args.Body))
	}))
	client, err := openRiver(ctx, river.Config{
		Workers: workers, RetryPolicy: riverDelay{},
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: atOnce}},
		FetchCooldown: time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	return client.Start(ctx)
}

type sqlJob struct {
	Job int
	Pad string
}

func openSQL(ctx context.Context) (wmsql.Beginner, *wmsql.Publisher, error) {
	pool, err := pgxpool.New(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	db := wmsql.BeginnerFromPgx(pool)
	publisher, err := wmsql.NewPublisher(db, wmsql.PublisherConfig{
		SchemaAdapter: wmsql.PostgreSQLQueueSchema{}, AutoInitializeSchema: true,
	}, watermill.NopLogger{})
	return db, publisher, err
}

func fillSQL(ctx context.Context, _ string, batches iter.Seq2[int, int]) error {
	_, publisher, err := openSQL(ctx)
	if err != nil {
		return err
	}
	for first, n := range batches {
		messages := make([]*message.Message, n)
		for i := range messages {
			body, _ := json.Marshal(sqlJob{first + i, strings.Repeat("x", usual.bytes-20)})
			messages[i] = message.NewMessage(watermill.NewUUID(), body)
		}
		err = errors.Join(err, publisher.Publish(peerQueue, messages...))
	}
	return err
}

// workSQL handles one job after the other: the subscriber has no setting for more.
func workSQL(ctx context.Context, _ string, _ int, handle func(int) error) error {
	db, publisher, err := openSQL(ctx)
	if err != nil {
		return err
	}
	sub, err := wmsql.NewSubscriber(db, wmsql.SubscriberConfig{
		SchemaAdapter:    wmsql.PostgreSQLQueueSchema{},
		OffsetsAdapter:   wmsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
		InitializeSchema: true,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	requeuer, err := wmsql.NewPostgreSQLDelayedRequeuer(wmsql.DelayedRequeuerConfig{
		DB: db, Publisher: publisher, DelayOnError: &wmmiddleware.DelayOnError{
			InitialInterval: peerDelay, MaxInterval: peerDelay, Multiplier: 1,
		},
	})
	if err != nil {
		return err
	}
	go func() { _ = requeuer.Run(ctx) }()
	_, err = route(ctx, func(router *message.Router) {
		router.AddMiddleware(requeuer.Middleware()...)
		router.AddConsumerHandler(peerQueue, peerQueue, sub, func(msg *message.Message) error {
			var j sqlJob
			if err := json.Unmarshal(msg.Payload, &j); err != nil {
				return err
			}
			return handle(j.Job)
		})
	})
	return err
}

// redis starts a server whose log is forced to the disk as said.
func redis(fsync string) func(context.Context, *bench) (*peerServer, error) {
	return func(ctx context.Context, _ *bench) (*peerServer, error) {
		folder, err := os.MkdirTemp("", "redis-")
		if err != nil {
			return nil, err
		}
		socket := folder + "/socket"
		cmd := exec.CommandContext(ctx, "redis-server", "--port", "0", "--unixsocket", socket,
			"--dir", folder, "--save", "", "--appendonly", "yes", "--appendfsync", fsync)
		if err := cmd.Start(); err != nil {
			return nil, errors.Join(err, os.RemoveAll(folder))
		}
		for _, err := os.Stat(socket); err != nil && ctx.Err() == nil; _, err = os.Stat(socket) {
			time.Sleep(10 * time.Millisecond)
		}
		return &peerServer{socket, func() []int { return []int{cmd.Process.Pid} }, func() error {
			err := cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
			return errors.Join(err, os.RemoveAll(folder))
		}}, nil
	}
}

func fillAsynq(ctx context.Context, url string, batches iter.Seq2[int, int]) error {
	client := asynq.NewClient(asynq.RedisClientOpt{Network: "unix", Addr: url})
	defer func() { _ = client.Close() }()
	var tasks errgroup.Group
	tasks.SetLimit(64)
	for first, n := range batches {
		for i := range n {
			tasks.Go(func() error {
				task := asynq.NewTask(peerQueue, usual.numbered(first+i).Body)
				_, err := client.EnqueueContext(ctx, task)
				return err
			})
		}
	}
	return tasks.Wait()
}

func workAsynq(_ context.Context, url string, atOnce int, handle func(int) error) error {
	server := asynq.NewServer(asynq.RedisClientOpt{Network: "unix", Addr: url}, asynq.Config{
		Concurrency: atOnce, LogLevel: asynq.FatalLevel,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return peerDelay },
	})
	return server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		return handle(number(t.Payload()))
	}))
}
