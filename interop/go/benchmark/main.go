// The worker of benchmarks/run for lock libraries written in Go:
// `benchmark CLIENT ADDRESS KEY CLIENTS TASKS own|hot SECTION_US`; benchmarks/ours/src/lib.rs has the protocol.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sys/unix"
)

const lease = 30 * time.Second

var background = context.Background()

// A contender locks, calls the section and unlocks.
type contender func(section func()) error

// Each library makes, for one client, a function that makes contenders.
var libraries = map[string]func(addresses []string) (func(key string) (contender, error), error){
	"redsync": func(addresses []string) (func(string) (contender, error), error) {
		var pools []redsyncredis.Pool
		for _, address := range addresses {
			pools = append(pools, goredis.NewPool(redis.NewClient(&redis.Options{Addr: address})))
		}
		rs := redsync.New(pools...)
		return func(key string) (contender, error) {
			return func(section func()) error {
				mutex := rs.NewMutex(key, redsync.WithExpiry(lease))
				if err := mutex.Lock(); err != nil {
					return err
				}
				section()
				_, err := mutex.Unlock()
				return err
			}, nil
		}, nil
	},
	"redislock": func(addresses []string) (func(string) (contender, error), error) {
		locker := redislock.New(redis.NewClient(&redis.Options{Addr: addresses[0]}))
		return func(key string) (contender, error) {
			return func(section func()) error {
				retry := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
				lock, err := locker.Obtain(background, key, lease, retry)
				if err != nil {
					return err
				}
				section()
				return lock.Release(background)
			}, nil
		}, nil
	},
	"concurrency": func(addresses []string) (func(string) (contender, error), error) {
		client, err := clientv3.New(clientv3.Config{Endpoints: addresses, DialTimeout: 30 * time.Second})
		if err != nil {
			return nil, err
		}
		return func(key string) (contender, error) {
			// Mutexes of one session do not exclude each other.
			session, err := concurrency.NewSession(client, concurrency.WithTTL(int(lease.Seconds())))
			if err != nil {
				return nil, err
			}
			mutex := concurrency.NewMutex(session, key)
			return func(section func()) error {
				if err := mutex.Lock(background); err != nil {
					return err
				}
				section()
				return mutex.Unlock(background)
			}, nil
		}, nil
	},
}

type run struct {
	cycles [][3]int64
	errors []string
}

func (c contender) until(end int64, length time.Duration) (done run) {
	for asked := now(); asked < end; asked = now() {
		err := c(func() {
			granted := now()
			if length > 0 {
				time.Sleep(length)
			}
			done.cycles = append(done.cycles, [3]int64{asked, granted, now()})
		})
		if err != nil {
			done.errors = append(done.errors, strings.ReplaceAll(err.Error(), "\n", " "))
		}
	}
	return done
}

// The monotonic clock, read without a system call: an offset to the one that Go keeps.
var started, origin = time.Now(), monotonic()

func now() int64 { return origin + int64(time.Since(started)) }

func monotonic() int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &time); err != nil {
		panic(err)
	}
	return time.Nano()
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	name, addresses, key, keys := os.Args[1], strings.Split(os.Args[2], ","), os.Args[3], os.Args[6]
	clients, tasks, length := number(os.Args[4]), number(os.Args[5]), time.Duration(number(os.Args[7]))*time.Microsecond
	var contenders []contender
	for range clients {
		client, err := libraries[name](addresses)
		if err != nil {
			panic(err)
		}
		for task := range tasks {
			mine := key
			if keys == "own" {
				mine = fmt.Sprintf("%s-%d", key, task)
			}
			one, err := client(mine)
			if err != nil {
				panic(err)
			}
			contenders = append(contenders, one)
		}
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		end := int64(number(lines.Text()))
		runs := make([]run, len(contenders))
		var running sync.WaitGroup
		for task, one := range contenders {
			running.Add(1)
			go func() {
				defer running.Done()
				runs[task] = one.until(end, length)
			}()
		}
		running.Wait()
		report(runs)
	}
}

func report(runs []run) {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	errors, first := 0, ""
	for task, run := range runs {
		for _, cycle := range run.cycles {
			fmt.Fprintln(out, task, cycle[0], cycle[1], cycle[2])
		}
		errors += len(run.errors)
		if first == "" && len(run.errors) > 0 {
			first = run.errors[0]
		}
	}
	fmt.Fprintf(out, "errors %d %s\nend\n", errors, first)
}
