package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.Socket;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ThreadLocalRandom;

/**
 * What every driver does: it takes orders from its input, one per line, and answers each with one line.
 * All of it happens on one thread, because locks of these libraries belong to threads.
 */
abstract class Driver {
    /** How many permits a semaphore of these tests has. */
    static final int PERMITS = 3;

    /** Takes a lock, and gives its fence, or 0 where there is none; -1 if it is busy and must not be waited for. */
    abstract long take(String kind, String name, boolean wait) throws Exception;

    abstract void release(String kind, String name) throws Exception;

    /** Whether this thread has a lock, where the library can say so. */
    boolean holds(String kind, String name) throws Exception {
        return false;
    }

    /** Whatever only one of the libraries can do. */
    String other(String[] order) throws Exception {
        throw new IllegalArgumentException("what is " + order[0] + "?");
    }

    void serve() throws Exception {
        PrintStream out = System.out;
        out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null;) {
            out.println(obey(line.split(" ")));
        }
        System.exit(0);
    }

    private String obey(String[] order) {
        try {
            switch (order[0]) {
                case "acquire":
                    return "held " + take(order[1], order[2], true);
                case "try":
                    long fence = take(order[1], order[2], false);
                    return fence < 0 ? "busy" : "held " + fence;
                case "release":
                    release(order[1], order[2]);
                    return "released";
                case "beside":
                    return "held " + beside(order[1], order[2]);
                case "again":
                    release(order[1], order[2]);
                    return "released";
                case "hammer":
                case "endure":
                    hammer(order[1], order[2], number(order[3]), number(order[4]), number(order[5]),
                        order[0].equals("endure"));
                    return "done";
                default:
                    return other(order);
            }
        } catch (Throwable problem) {
            return ("error " + problem).replace('\n', ' ');
        }
    }

    /** Takes a lock as another task of this process, which keeps it. */
    private long beside(String kind, String name) throws Exception {
        FutureTask<Long> task = new FutureTask<>(() -> take(kind, name, true));
        new Thread(task).start();
        return task.get();
    }

    /** Enters so many times; if it endures, the arbiter is told of failures, and it goes on. */
    private void hammer(String kind, String name, int count, int arbiter, int pause, boolean endures)
        throws Exception {
        try (Socket socket = new Socket("127.0.0.1", arbiter)) {
            socket.setTcpNoDelay(true);
            for (int n = 0; n < count; n++) {
                try {
                    visit(kind, name, socket);
                    // A grant whose answer was lost is asked for again, and counts twice.
                    while (endures && holds(kind, name)) {
                        ask(socket, "trouble theirs " + name + " twice held after its release\n");
                        release(kind, name);
                    }
                } catch (RuntimeException problem) {
                    if (!endures) {
                        throw problem;
                    }
                    // This is how libraries say at a release that the lock was gone.
                    String what = problem instanceof IllegalMonitorStateException ? "lost" : "failed";
                    String why = problem.toString().replace('\n', ' ');
                    ask(socket, "trouble theirs " + name + " " + what + " " + why + "\n");
                }
                Thread.sleep(ThreadLocalRandom.current().nextInt(pause));
            }
        }
    }

    private void visit(String kind, String name, Socket socket) throws Exception {
        long fence = take(kind, name, true);
        ask(socket, "enter theirs " + mode(kind) + " " + fence + " " + name + "\n");
        ask(socket, "leave\n");
        release(kind, name);
    }

    /** Nobody goes on before the arbiter has noted it. */
    private static void ask(Socket socket, String line) throws Exception {
        socket.getOutputStream().write(line.getBytes());
        if (socket.getInputStream().read() != '.') {
            throw new IOException("the arbiter is gone");
        }
    }

    private static int number(String word) {
        return Integer.parseInt(word);
    }

    private static String mode(String kind) {
        switch (kind) {
            case "read":
                return "shared";
            case "permit":
                return "permit";
            default:
                return "exclusive";
        }
    }
}
