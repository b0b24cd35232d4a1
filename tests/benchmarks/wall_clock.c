// SPDX-FileCopyrightText: 2026 the serve_warm authors
// SPDX-License-Identifier: Apache-2.0
//
// A wall clock that jumps, for the Python code of one process (LD_PRELOAD).
//
// WALL_CLOCK_FILE names a file of 8 bytes: the seconds, as a double, that Python's wall clock is
// ahead. Only calls from the interpreter itself are changed. Ray's C++ code waits with absolute
// times of the kernel's clock, which does not jump here. libfaketime changes all calls, and then
// time.sleep fails with EINVAL after a jump (0.9.10).

#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile double *ahead_s;
static struct { uintptr_t from, to; } python[2];

static int note(struct dl_phdr_info *object, size_t size, void *number)
{
    int *at = number;
    (void)size;
    if (*at == 2 || (*object->dlpi_name && !strstr(object->dlpi_name, "libpython")))
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
            python[*at].from = object->dlpi_addr + part->p_vaddr;
            python[*at].to = python[*at].from + part->p_memsz;
        }
    }
    ++*at;
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("WALL_CLOCK_FILE");
    int number = 0, file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    dl_iterate_phdr(note, &number);
    if (mapped != MAP_FAILED)
        ahead_s = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (failed || !ahead_s || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    for (int i = 0; i < 2; i++)
        if (caller >= python[i].from && caller < python[i].to)
            now->tv_sec += (time_t)*ahead_s;
    return 0;
}
