package interop;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson, on one server, a cluster or behind sentinels: `RedissonDriver WHERE LEASE_MS`, where it is
 * `ADDRESS[,ADDRESS…]` or `redis+sentinel://ADDRESS[,ADDRESS…]/MASTER`.
 */
final class RedissonDriver extends Driver {
    private static final String SENTINEL = "redis+sentinel://";

    private final RedissonClient client;
    /** Permits that are held, which have names. */
    private final Deque<String> permits = new ArrayDeque<>();

    public static void main(String[] args) throws Exception {
        new RedissonDriver(args[0], Long.parseLong(args[1])).serve();
    }

    private RedissonDriver(String where, long lease) {
        Config config = new Config().setLockWatchdogTimeout(lease).setThreads(4).setNettyThreads(4);
        boolean watched = where.startsWith(SENTINEL);
        String[] parts = where.substring(watched ? SENTINEL.length() : 0).split("/");
        String[] addresses = parts[0].split(",");
        String[] nodes = Arrays.stream(addresses).map(address -> "redis://" + address).toArray(String[]::new);
        if (watched) {
            config.useSentinelServers().setMasterName(parts[1]).addSentinelAddress(nodes)
                .setMasterConnectionMinimumIdleSize(1).setSlaveConnectionMinimumIdleSize(1);
        } else if (addresses.length > 1) {
            config.useClusterServers().addNodeAddress(nodes).setMasterConnectionMinimumIdleSize(1)
                .setSlaveConnectionMinimumIdleSize(1);
        } else {
            config.useSingleServer().setAddress(nodes[0]).setConnectionMinimumIdleSize(1);
        }
        client = Redisson.create(config);
    }

    @Override
    long take(String kind, String name, boolean wait) throws Exception {
        if (kind.equals("fenced")) {
            RFencedLock lock = client.getFencedLock(name);
            if (wait) {
                return lock.lockAndGetToken();
            }
            // tryLockAndGetToken() waits for a busy lock, and fails with a time too short to subscribe in.
            return lock.tryLock() ? lock.getToken() : -1;
        }
        if (kind.equals("semaphore")) {
            client.getSemaphore(name).trySetPermits(PERMITS);
            return client.getSemaphore(name).tryAcquire() ? 0 : -1;
        }
        if (kind.equals("expirable")) {
            client.getPermitExpirableSemaphore(name).trySetPermits(PERMITS);
            String permit = client.getPermitExpirableSemaphore(name).tryAcquire();
            if (permit != null) {
                permits.push(permit);
            }
            return permit == null ? -1 : 0;
        }
        RLock lock = lock(kind, name);
        if (wait) {
            lock.lock();
            return 0;
        }
        return lock.tryLock() ? 0 : -1;
    }

    @Override
    void release(String kind, String name) {
        switch (kind) {
            case "semaphore":
                client.getSemaphore(name).release();
                break;
            case "expirable":
                client.getPermitExpirableSemaphore(name).release(permits.pop());
                break;
            default:
                lock(kind, name).unlock();
        }
    }

    @Override
    boolean holds(String kind, String name) {
        return lock(kind, name).isHeldByCurrentThread();
    }

    private RLock lock(String kind, String name) {
        switch (kind) {
            case "mutex":
                return client.getLock(name);
            case "spin":
                return client.getSpinLock(name);
            case "fair":
                return client.getFairLock(name);
            case "fenced":
                return client.getFencedLock(name);
            case "read":
                return client.getReadWriteLock(name).readLock();
            case "write":
                return client.getReadWriteLock(name).writeLock();
            case "multi":
                return client.getMultiLock(client.getLock(name + "-a"), client.getLock(name + "-b"));
            default:
                throw new IllegalArgumentException("no lock of Redisson is a " + kind);
        }
    }
}
