package interop;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Curator: `CuratorDriver HOST:PORT/ROOT SESSION_MS`. */
final class CuratorDriver extends Driver {
    private final CuratorFramework client;
    private final String root;
    /** A lock of Curator is re-entrant for the object that made it, so there is one per name. */
    private final Map<String, InterProcessLock> locks = new HashMap<>();
    private final Map<String, InterProcessReadWriteLock> pairs = new HashMap<>();
    private final Map<String, InterProcessSemaphoreV2> semaphores = new HashMap<>();
    private final Deque<Lease> leases = new ArrayDeque<>();
    private final Semaphore asked = new Semaphore(0);

    public static void main(String[] args) throws Exception {
        int slash = args[0].indexOf('/');
        new CuratorDriver(args[0].substring(0, slash), args[0].substring(slash), Integer.parseInt(args[1])).serve();
    }

    private CuratorDriver(String hosts, String root, int session) throws Exception {
        this.root = root;
        client = CuratorFrameworkFactory.newClient(hosts, session, 15000, new ExponentialBackoffRetry(100, 10));
        client.start();
        client.blockUntilConnected();
    }

    @Override
    long take(String kind, String name, boolean wait) throws Exception {
        if (kind.equals("permit")) {
            InterProcessSemaphoreV2 semaphore = semaphore(name);
            Lease lease = wait ? semaphore.acquire() : semaphore.acquire(1, TimeUnit.SECONDS);
            if (lease != null) {
                leases.push(lease);
            }
            return lease == null ? -1 : 0;
        }
        InterProcessLock lock = lock(kind, name);
        if (wait) {
            lock.acquire();
            return 0;
        }
        return lock.acquire(1, TimeUnit.SECONDS) ? 0 : -1;
    }

    @Override
    void release(String kind, String name) throws Exception {
        if (kind.equals("permit")) {
            semaphore(name).returnLease(leases.pop());
        } else {
            lock(kind, name).release();
        }
    }

    @Override
    String other(String[] order) throws Exception {
        switch (order[0]) {
            case "revoke":
                InterProcessMutex mutex = new InterProcessMutex(client, path(order[1]));
                Revoker.attemptRevoke(client, mutex.getParticipantNodes().iterator().next());
                return "revoked";
            case "asked":
                return asked.tryAcquire(30, TimeUnit.SECONDS) ? "asked" : "never";
            default:
                return super.other(order);
        }
    }

    private InterProcessLock lock(String kind, String name) {
        return locks.computeIfAbsent(kind + " " + name, key -> {
            switch (kind) {
                case "mutex":
                    return new InterProcessMutex(client, path(name));
                case "revocable":
                    InterProcessMutex mutex = new InterProcessMutex(client, path(name));
                    mutex.makeRevocable(lock -> asked.release());
                    return mutex;
                case "semaphoremutex":
                    return new InterProcessSemaphoreMutex(client, path(name));
                case "read":
                    return pair(name).readLock();
                case "write":
                    return pair(name).writeLock();
                case "multi":
                    return new InterProcessMultiLock(client, List.of(path(name + "-a"), path(name + "-b")));
                default:
                    throw new IllegalArgumentException("no lock of Curator is a " + kind);
            }
        });
    }

    private InterProcessReadWriteLock pair(String name) {
        return pairs.computeIfAbsent(name, key -> new InterProcessReadWriteLock(client, path(key)));
    }

    private InterProcessSemaphoreV2 semaphore(String name) {
        return semaphores.computeIfAbsent(name, key -> new InterProcessSemaphoreV2(client, path(key), PERMITS));
    }

    private String path(String name) {
        return root + "/" + name;
    }
}
