/* SPDX-License-Identifier: Apache-2.0
 * A leak and a race, planted to show that the suite fails on them: ctest runs this program in the
 * sanitizer builds alone and expects it to fail. */
#include <criterion/criterion.h>

#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"

Test(planted, leak)
{
    void *volatile lost = mem_calloc(77, 1);
    cr_assert_not_null(lost);
    lost = NULL;
}

static int counter;

static void *count(void *unused)
{
    for (int i = 0; i < 100000; i++)
        counter++;
    return unused;
}

Test(planted, race)
{
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, count, NULL), 0);
    count(NULL);
    pthread_join(thread, NULL);
    cr_assert_gt(counter, 0);
}
