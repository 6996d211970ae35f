/* capture.c - redirection by dup2 into an unlinked file, so that no reader can block a writer. */
#include "tests/support/capture.h"

#include "base/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

capture capture_begin(int fd)
{
    capture c = {.fd = fd};
    FILE *file = tmpfile();

    RT_ASSERT(file != NULL);
    fflush(NULL);
    c.file = dup(fileno(file));
    c.saved = dup(fd);
    RT_ASSERT(c.file >= 0 && c.saved >= 0 && dup2(c.file, fd) == fd);
    fclose(file);
    return c;
}

char *capture_end(capture *c)
{
    off_t bytes;
    char *text;

    fflush(NULL);
    RT_ASSERT(dup2(c->saved, c->fd) == c->fd);
    bytes = lseek(c->file, 0, SEEK_END);
    text = calloc(1, (size_t)bytes + 1);
    RT_ASSERT(text != NULL && pread(c->file, text, (size_t)bytes, 0) == (ssize_t)bytes);
    close(c->saved);
    close(c->file);
    return text;
}

int run_in_child(void (*body)(void *context), void *context)
{
    int status = 0;
    pid_t child;

    fflush(NULL);
    child = fork();
    RT_ASSERT(child >= 0);
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);

        dup2(null, STDERR_FILENO);
        body(context);
        _exit(0);
    }
    RT_ASSERT(waitpid(child, &status, 0) == child);
    return status;
}
