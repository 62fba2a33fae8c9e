/* fork(2) for programs in which nothing unsafe may be called: loaded before the C library, it makes
   getppid() fork, and answer as fork() does. */
#include <unistd.h>

pid_t getppid(void)
{
    return fork();
}
