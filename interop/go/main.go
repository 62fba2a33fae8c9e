// The driver for etcd's own package concurrency: `driver ADDRESS LEASE_MS`.
// It takes orders from its input, one per line, and answers each with one line.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

type driver struct {
	session *concurrency.Session
	held    map[string]*concurrency.Mutex
}

// take gives the fence, and whether it has the lock at all.
func (d *driver) take(name string, wait bool) (int64, bool, error) {
	mutex := concurrency.NewMutex(d.session, name)
	var err error
	if wait {
		err = mutex.Lock(context.Background())
	} else {
		err = mutex.TryLock(context.Background())
	}
	if errors.Is(err, concurrency.ErrLocked) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	answer, err := d.session.Client().Get(context.Background(), mutex.Key())
	if err != nil || len(answer.Kvs) != 1 {
		return 0, false, fmt.Errorf("where is %s: %v", mutex.Key(), err)
	}
	d.held[name] = mutex
	return answer.Kvs[0].CreateRevision, true, nil
}

func (d *driver) release(name string) error {
	mutex := d.held[name]
	delete(d.held, name)
	return mutex.Unlock(context.Background())
}

func (d *driver) hammer(name string, count int, port string, pause int) error {
	arbiter, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	defer arbiter.Close()
	ask := func(line string) error {
		if _, err := arbiter.Write([]byte(line)); err != nil {
			return err
		}
		_, err := arbiter.Read(make([]byte, 1))
		return err
	}
	for n := 0; n < count; n++ {
		fence, _, err := d.take(name, true)
		if err != nil {
			return err
		}
		if err := ask(fmt.Sprintf("enter theirs exclusive %d %s\n", fence, name)); err != nil {
			return err
		}
		if err := ask("leave\n"); err != nil {
			return err
		}
		if err := d.release(name); err != nil {
			return err
		}
		time.Sleep(time.Duration(rand.Intn(pause*1000)) * time.Microsecond)
	}
	return nil
}

func (d *driver) obey(order []string) (string, error) {
	switch order[0] {
	case "acquire", "try":
		fence, got, err := d.take(order[2], order[0] == "acquire")
		if !got {
			return "busy", err
		}
		return fmt.Sprintf("held %d", fence), err
	case "release":
		return "released", d.release(order[2])
	case "hammer":
		count, err := strconv.Atoi(order[3])
		if err != nil {
			return "", err
		}
		pause, err := strconv.Atoi(order[5])
		if err != nil {
			return "", err
		}
		return "done", d.hammer(order[2], count, order[4], pause)
	}
	return "", fmt.Errorf("what is %s?", order[0])
}

func main() {
	lease, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Args[1]}, DialTimeout: 30 * time.Second})
	if err != nil {
		panic(err)
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(lease/1000))
	if err != nil {
		panic(err)
	}
	d := driver{session: session, held: map[string]*concurrency.Mutex{}}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		answer, err := d.obey(strings.Fields(lines.Text()))
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(answer)
	}
}
