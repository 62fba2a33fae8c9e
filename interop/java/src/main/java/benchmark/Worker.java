package benchmark;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * The worker of benchmarks/run for Redisson and Curator: `Worker CLIENT ADDRESS KEY CLIENTS TASKS own|hot SECTION_US`;
 * benchmarks/ours/src/lib.rs has the protocol. Both libraries want one client per process, and a lock of theirs
 * belongs to a thread, so every contender is a thread of one client.
 */
final class Worker {
    interface Lock {
        void lock() throws Exception;

        void unlock() throws Exception;
    }

    interface Library {
        Lock lock(String key);
    }

    /** A contender, with the same thread in all runs. */
    private static final class Contender extends Thread {
        private final Lock lock;
        private final long section;
        private long until;
        private boolean running;
        private long[] cycles = new long[3 << 16];
        private int used;
        private int errors;
        private String first = "";

        Contender(Lock lock, long section) {
            this.lock = lock;
            this.section = section;
            setDaemon(true);
            start();
        }

        synchronized void begin(long until) {
            this.until = until;
            used = 0;
            errors = 0;
            running = true;
            notifyAll();
        }

        synchronized void finish() throws InterruptedException {
            while (running) {
                wait();
            }
        }

        @Override
        public void run() {
            for (;;) {
                synchronized (this) {
                    while (!running) {
                        try {
                            wait();
                        } catch (InterruptedException end) {
                            return;
                        }
                    }
                }
                for (long asked; (asked = System.nanoTime()) < until;) {
                    cycle(asked);
                }
                synchronized (this) {
                    running = false;
                    notifyAll();
                }
            }
        }

        private void cycle(long asked) {
            try {
                lock.lock();
                long granted = System.nanoTime();
                if (section > 0) {
                    LockSupport.parkNanos(section);
                }
                if (used == cycles.length) {
                    cycles = java.util.Arrays.copyOf(cycles, 2 * used);
                }
                cycles[used++] = asked;
                cycles[used++] = granted;
                cycles[used++] = System.nanoTime();
                lock.unlock();
            } catch (Exception problem) {
                if (errors++ == 0) {
                    first = problem.toString().replace('\n', ' ');
                }
            }
        }
    }

    private static Library redisson(String address) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + address);
        RedissonClient client = Redisson.create(config);
        return key -> {
            RLock lock = client.getLock(key);
            return new Lock() {
                public void lock() {
                    lock.lock();
                }

                public void unlock() {
                    lock.unlock();
                }
            };
        };
    }

    private static Library curator(String address) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(address, new ExponentialBackoffRetry(1000, 3));
        client.start();
        client.blockUntilConnected();
        return key -> {
            InterProcessMutex mutex = new InterProcessMutex(client, "/" + key);
            return new Lock() {
                public void lock() throws Exception {
                    mutex.acquire();
                }

                public void unlock() throws Exception {
                    mutex.release();
                }
            };
        };
    }

    public static void main(String[] args) throws Exception {
        Library library = args[0].equals("redisson") ? redisson(args[1]) : curator(args[1]);
        int tasks = Integer.parseInt(args[4]);
        long section = 1000 * Long.parseLong(args[6]);
        List<Contender> contenders = new ArrayList<>();
        for (int n = 0; n < Integer.parseInt(args[3]) * tasks; n++) {
            String key = args[5].equals("own") ? args[2] + "-" + n % tasks : args[2];
            contenders.add(new Contender(library.lock(key), section));
        }
        PrintWriter out = new PrintWriter(new BufferedWriter(new OutputStreamWriter(System.out)));
        out.print("ready\n");
        out.flush();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null;) {
            long until = Long.parseLong(line);
            for (Contender contender : contenders) {
                contender.begin(until);
            }
            for (Contender contender : contenders) {
                contender.finish();
            }
            report(contenders, out);
        }
        System.exit(0);
    }

    private static void report(List<Contender> contenders, PrintWriter out) {
        int errors = 0;
        String first = "";
        for (int task = 0; task < contenders.size(); task++) {
            Contender one = contenders.get(task);
            for (int n = 0; n < one.used; n += 3) {
                out.print(task + " " + one.cycles[n] + " " + one.cycles[n + 1] + " " + one.cycles[n + 2] + "\n");
            }
            errors += one.errors;
            first = first.isEmpty() && one.errors > 0 ? one.first : first;
        }
        out.print("errors " + errors + " " + first + "\nend\n");
        out.flush();
    }
}
