package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// unlocking is how long an unlock may take. Without a limit, a client waits for a lost reply for ever.
const unlocking = 10 * time.Second

// sessions is etcd's package concurrency. All locks of the process are in one session, as its documentation shows.
type sessions struct {
	session *concurrency.Session
}

type sessionLock struct {
	mutex    *concurrency.Mutex
	revision int64
}

func newConcurrency(address string, lease time.Duration) (library, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: 30 * time.Second})
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(lease.Seconds())))
	return &sessions{session}, err
}

func (s *sessions) take(name string, wait bool) (held, error) {
	mutex := concurrency.NewMutex(s.session, name)
	var err error
	if wait {
		err = mutex.Lock(context.Background())
	} else {
		err = mutex.TryLock(context.Background())
	}
	if errors.Is(err, concurrency.ErrLocked) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	answer, err := s.session.Client().Get(context.Background(), mutex.Key())
	if err != nil || len(answer.Kvs) != 1 {
		return nil, fmt.Errorf("where is %s: %v", mutex.Key(), err)
	}
	return &sessionLock{mutex, answer.Kvs[0].CreateRevision}, nil
}

func (l *sessionLock) fence() int64 { return l.revision }

func (l *sessionLock) release() error {
	limited, cancel := context.WithTimeout(context.Background(), unlocking)
	defer cancel()
	return l.mutex.Unlock(limited)
}
