// The driver for lock libraries written in Go: `driver concurrency|redsync ADDRESS LEASE_MS`.
// It takes orders from its input, one per line, and answers each with one line.
package main

import (
	"bufio"
	"fmt"
	"math/rand"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// A library takes locks.
type library interface {
	// take gives a lock, or nothing if it is busy and must not be waited for.
	take(name string, wait bool) (held, error)
}

// A lock that was taken.
type held interface {
	// fence is 0 if the library has none.
	fence() int64
	release() error
}

var libraries = map[string]func(address string, lease time.Duration) (library, error){
	"concurrency": newConcurrency,
	"redsync":     newRedsync,
}

type driver struct {
	library library
	held    map[string]held
	// released has what was released last, to be released again.
	released map[string]held
	// beside has the locks of other tasks of this process.
	beside []held
}

func (d *driver) obey(order []string) (string, error) {
	switch order[0] {
	case "acquire", "try":
		lock, err := d.library.take(order[2], order[0] == "acquire")
		if lock == nil {
			return "busy", err
		}
		d.held[order[2]] = lock
		return fmt.Sprintf("held %d", lock.fence()), err
	case "beside":
		lock, err := d.library.take(order[2], true)
		if err != nil {
			return "", err
		}
		d.beside = append(d.beside, lock)
		return fmt.Sprintf("held %d", lock.fence()), nil
	case "release":
		d.released[order[2]] = d.held[order[2]]
		delete(d.held, order[2])
		return "released", d.released[order[2]].release()
	case "again":
		return "released", d.released[order[2]].release()
	case "hammer", "endure":
		count, err := strconv.Atoi(order[3])
		if err != nil {
			return "", err
		}
		pause, err := strconv.Atoi(order[5])
		if err != nil {
			return "", err
		}
		return "done", d.hammer(order[2], count, order[4], pause, order[0] == "endure")
	}
	return "", fmt.Errorf("what is %s?", order[0])
}

// hammer enters so many times; if it endures, the arbiter is told of failures, and it goes on.
func (d *driver) hammer(name string, count int, port string, pause int, endures bool) error {
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
		lock, err := d.library.take(name, true)
		if err == nil {
			if err := ask(fmt.Sprintf("enter theirs exclusive %d %s\n", lock.fence(), name)); err != nil {
				return err
			}
			if err := ask("leave\n"); err != nil {
				return err
			}
			err = lock.release()
		}
		if err != nil {
			if !endures {
				return err
			}
			if err := ask(fmt.Sprintf("trouble theirs %s failed %s\n", name, oneLine(err))); err != nil {
				return err
			}
		}
		time.Sleep(time.Duration(rand.Intn(pause*1000)) * time.Microsecond)
	}
	return nil
}

func oneLine(err error) string {
	return strings.ReplaceAll(err.Error(), "\n", " ")
}

func main() {
	lease, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	library, err := libraries[os.Args[1]](os.Args[2], time.Duration(lease)*time.Millisecond)
	if err != nil {
		panic(err)
	}
	d := driver{library: library, held: map[string]held{}, released: map[string]held{}}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		answer, err := d.obey(strings.Fields(lines.Text()))
		if err != nil {
			answer = "error " + oneLine(err)
		}
		fmt.Println(answer)
	}
}
