package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const sentinel = "redis+sentinel://"

// redlocks is redsync over one server or several, `ADDRESS[,ADDRESS…]`, or behind sentinels,
// `redis+sentinel://ADDRESS[,ADDRESS…]/MASTER`.
type redlocks struct {
	redsync *redsync.Redsync
	lease   time.Duration
}

type redlock struct {
	mutex *redsync.Mutex
}

// silent says nothing: failures are told by the calls that meet them.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func newRedsync(address string, lease time.Duration) (library, error) {
	redis.SetLogger(silent{})
	var clients []redis.UniversalClient
	if watched, found := strings.CutPrefix(address, sentinel); found {
		sentinels, master, _ := strings.Cut(watched, "/")
		options := &redis.FailoverOptions{MasterName: master, SentinelAddrs: strings.Split(sentinels, ",")}
		clients = append(clients, redis.NewFailoverClient(options))
	} else {
		for _, one := range strings.Split(address, ",") {
			clients = append(clients, redis.NewClient(&redis.Options{Addr: one}))
		}
	}
	var pools []redsyncredis.Pool
	for _, client := range clients {
		if err := client.Ping(context.Background()).Err(); err != nil {
			return nil, err
		}
		pools = append(pools, goredis.NewPool(client))
	}
	return &redlocks{redsync.New(pools...), lease}, nil
}

// It gives up after so many tries, so it is asked again here.
func (r *redlocks) take(name string, wait bool) (held, error) {
	tries := 1
	if wait {
		tries = 32
	}
	for {
		mutex := r.redsync.NewMutex(name, redsync.WithExpiry(r.lease), redsync.WithTries(tries))
		err := mutex.Lock()
		if err == nil {
			return &redlock{mutex}, nil
		}
		if !isTaken(err) && !errors.Is(err, redsync.ErrFailed) {
			return nil, err
		}
		if !wait {
			return nil, nil
		}
	}
}

func (l *redlock) fence() int64 { return 0 }

func (l *redlock) release() error {
	_, err := l.mutex.Unlock()
	return err
}

// isTaken says whether any server answered that another has the lock.
func isTaken(err error) bool {
	var all *redsync.ErrTaken
	var one *redsync.ErrNodeTaken
	return errors.As(err, &all) || errors.As(err, &one)
}
