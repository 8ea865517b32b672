/* SPDX-License-Identifier: Apache-2.0
 * JSON files with lines, shipped files, and pictures. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/doc.h"
#include "base/mem.h"
#include "base/plot.h"
#include "base/ship.h"

/* ---- lines ---- */

static const char lines[] = "{ \"a\": 1,\n"                   /* 1 */
                            "  \"b\": [ {\"a\": \"x\\\"\",\n" /* 2 */
                            "\"c\\n\": null},\n"              /* 3 */
                            "\n"                              /* 4 */
                            "  [], [true,\n"                  /* 5 */
                            "false ] , -1.5e3, {\n"           /* 6 */
                            "}],\n"                           /* 7 */
                            "\"d\" :\n"                       /* 8 */
                            "\"\\u00e9\", \"\": { \"a\":\n"   /* 9 */
                            " {\"e\":7}}}\n";                 /* 10 */

Test(doc, line_of_every_member)
{
    struct doc doc;
    struct err err = ERR_INIT;
    cr_assert_eq(doc_parse(&doc, "x", lines, strlen(lines), &err), 0, "%s", err.text);
    json_t *b = json_object_get(doc.root, "b"), *last = json_object_get(doc.root, "");
    cr_expect_eq(doc_line(&doc, doc.root, "a", 0), 1);
    cr_expect_eq(doc_line(&doc, doc.root, "b", 0), 2);
    cr_expect_eq(doc_line(&doc, doc.root, "d", 0), 8);
    cr_expect_eq(doc_line(&doc, doc.root, "", 0), 9);
    cr_expect_eq(doc_line(&doc, last, "a", 0), 9);
    cr_expect_eq(doc_line(&doc, json_object_get(last, "a"), "e", 0), 10);
    cr_expect_eq(doc_line(&doc, json_array_get(b, 0), "a", 0), 2);
    cr_expect_eq(doc_line(&doc, json_array_get(b, 0), "c\n", 0), 3);
    static const unsigned items[] = {2, 5, 5, 6, 6};
    for (size_t i = 0; i < 5; i++) {
        cr_expect_eq(doc_line(&doc, b, NULL, i), items[i], "item %zu", i);
    }
    cr_expect_eq(doc_line(&doc, json_array_get(b, 2), NULL, 1), 6);
    cr_expect_eq(doc_line(&doc, json_array_get(b, 4), "none", 0), 6); /* where the object starts */
    cr_expect_eq(doc_line(&doc, doc.root, "none", 0), 1);
    doc_release(&doc);
    doc_release(&doc);
}

/* ---- typed members ---- */

Test(doc, typed_members)
{
    static const char text[] = "{\"u\":7,\"d\":0.5,\"b\":true,\"s\":\"word\",\n\"n\":null,"
                               "\"o\":{},\"a\":[1],\n\"minus\":-3,\"big\":9223372036854775807}";
    struct doc doc;
    struct err err = ERR_INIT;
    cr_assert_eq(doc_parse(&doc, "x", text, strlen(text), &err), 0);
    uint64_t u = 1;
    double d = 1;
    bool b = false;
    const char *s = NULL;
    json_t *child = NULL;
    cr_expect(doc_uint(&doc, doc.root, "u", 0, 9, &u, &err) == 1 && u == 7);
    cr_expect(doc_uint(&doc, doc.root, "big", 0, UINT64_MAX, &u, &err) == 1 && u == INT64_MAX);
    cr_expect(doc_double(&doc, doc.root, "d", 0, 1, &d, &err) == 1 && d == 0.5);
    cr_expect(doc_double(&doc, doc.root, "u", 0, 9, &d, &err) == 1 && d == 7);
    cr_expect(doc_bool(&doc, doc.root, "b", &b, &err) == 1 && b);
    cr_expect(doc_string(&doc, doc.root, "s", &s, &err) == 1 && strcmp(s, "word") == 0);
    cr_expect(doc_child(&doc, doc.root, "a", JSON_ARRAY, &child, &err) == 1 && child);
    static const char *const absent[] = {"n", "none"};
    for (int i = 0; i < 2; i++) {
        cr_expect(doc_uint(&doc, doc.root, absent[i], 0, 9, &u, &err) == 0 && u == INT64_MAX);
        cr_expect(doc_double(&doc, doc.root, absent[i], 0, 9, &d, &err) == 0 && d == 7);
        cr_expect(doc_bool(&doc, doc.root, absent[i], &b, &err) == 0 && b);
        cr_expect(doc_string(&doc, doc.root, absent[i], &s, &err) == 0 && s);
        cr_expect(doc_child(&doc, doc.root, absent[i], JSON_OBJECT, &child, &err) == 0 && child);
    }
    cr_expect_eq(doc_uint(&doc, NULL, "u", 0, 9, &u, &err), 0);
    cr_expect_eq(err.count, 0);
    cr_expect_eq(doc_uint(&doc, doc.root, "minus", 0, 9, &u, &err), -1);
    cr_expect_eq(doc_uint(&doc, doc.root, "u", 8, 9, &u, &err), -1);
    cr_expect_eq(doc_uint(&doc, doc.root, "d", 0, 9, &u, &err), -1);
    cr_expect_eq(doc_double(&doc, doc.root, "d", 1, 2, &d, &err), -1);
    cr_expect_eq(doc_bool(&doc, doc.root, "u", &b, &err), -1);
    cr_expect_eq(doc_string(&doc, doc.root, "u", &s, &err), -1);
    cr_expect_eq(doc_child(&doc, doc.root, "o", JSON_ARRAY, &child, &err), -1);
    cr_expect_str_eq(err.text, "x:3: \"minus\" is -3, it must be in 0..9\n"
                               "x:1: \"u\" is 7, it must be in 8..9\n"
                               "x:1: \"d\" must be a whole number, it is a real number\n"
                               "x:1: \"d\" is 0.5, it must be in 1..2\n"
                               "x:1: \"u\" must be true or false, it is a whole number\n"
                               "x:1: \"u\" must be a string, it is a whole number\n"
                               "x:2: \"o\" must be a list, it is an object");
    cr_expect_eq(doc.faults, 7);
    err_release(&err);
    static const char *const known[] = {"u", "d", "b", "s", "n", "o", "a", "minsu", NULL};
    cr_expect_eq(doc_keys(&doc, doc.root, known, &err), -1);
    cr_expect(err.count == 2 && strstr(err.text, "x:3: unknown member \"minus\": nearest is minsu"),
              "%s", err.text);
    err_release(&err);
    doc_release(&doc);
}

Test(doc, bounded_faults)
{
    struct doc doc;
    struct err err = ERR_INIT;
    cr_assert_eq(doc_parse(&doc, "x", "{}", 2, &err), 0);
    for (int i = 0; i < 1000; i++) {
        cr_expect_eq(doc_fault(&doc, &err, doc.root, "k", "fault %d", i), -1);
        cr_expect_eq(doc_fault_item(&doc, &err, doc.root, 0, "fault %d", i), -1);
    }
    cr_expect_eq(err.count, DOC_FAULTS_MAX + 1);
    err_release(&err);
    doc_release(&doc);
}

/* ---- shipped files ---- */

Test(ship, finds_and_lists)
{
    size_t count = 0;
    char **names = ship_names("models", ".json", &count);
    cr_assert_gt(count, 50);
    for (size_t i = 1; i < count; i++) {
        cr_expect_lt(strcmp(names[i - 1], names[i]), 0);
    }
    cr_expect_eq(names[count], NULL);
    ship_names_free(names);
    static const char *const found[] = {"7b", "7b.json", "models/7b", "./models/7b.json"};
    static const char *const none[] = {"", "7c", "../models/7b", "sub/7b", "/7b"};
    for (int i = 0; i < 4; i++) {
        char *path = ship_find("models", found[i], ".json");
        cr_expect(path && strcmp(path + strlen(path) - 7, "7b.json") == 0, "%s", found[i]);
        free(path);
    }
    for (int i = 0; i < 5; i++) {
        char *path = ship_find("models", none[i], ".json");
        cr_expect_eq(path, NULL, "%s", none[i]);
        free(path);
    }
    cr_expect_eq(ship_folder("no such folder"), NULL);
    cr_expect_eq(ship_folder("CMakeLists.txt"), NULL); /* a file is no folder */
    char *folder = ship_find("models", ".", "");       /* nor is a folder a file */
    cr_expect_eq(folder, NULL);
    names = ship_names("no such folder", ".json", &count);
    cr_expect(count == 0 && names[0] == NULL);
    ship_names_free(names);
}

/* ---- pictures ---- */

static char *read_all(const char *path)
{
    char *text = mem_calloc(1 << 20, 1);
    FILE *file = fopen(path, "r");
    cr_assert(file, "%s", path);
    cr_expect_gt(fread(text, 1, (1 << 20) - 1, file), 0);
    fclose(file);
    return text;
}

Test(plot, bars)
{
    static const char *const bars[] = {"a_1 \"x\"", "b\\", "c"};
    static const char *const parts[] = {"compute", "nothing", "waits"};
    static const double values[] = {1, 0, 2, 3.5, 0, 1, NAN, 0, NAN};
    struct plot_bars plot = {"A title", "time, ms", 3, 3, bars, parts, values};
    struct err err = ERR_INIT;
    char folder[] = "/tmp/plot-XXXXXX";
    cr_assert(mkdtemp(folder));
    char *script = mem_printf("%s/a.gp", folder), *svg = mem_printf("%s/a.svg", folder);
    cr_assert_eq(plot_bars(&plot, script, &err), 0, "%s", err.text);
    char *text = read_all(script);
    cr_expect(strstr(text, "\"a_1 'x'\" 1 0 2\n\"b'\" 3.5 0 1\n\"c\" 0 0 0\n"), "%s", text);
    cr_expect(strstr(text, "using 2:xtic(1)") && strstr(text, "using 4:xtic(1)"));
    cr_expect_eq(strstr(text, "using 3:xtic(1)"), NULL); /* 0 everywhere */
    free(text);
    if (plot_bars(&plot, svg, &err) == 0) {
        text = read_all(svg);
        cr_expect(strstr(text, "A title") && strstr(text, "waits") && strstr(text, "</svg>"));
        free(text);
    } else {
        cr_expect(strstr(err.text, "not installed"), "%s", err.text);
    }
    err_release(&err);
    cr_expect_eq(plot_bars(&plot, "a.jpg", &err), -1);
    cr_expect_eq(err.code, ERR_USAGE);
    err_release(&err);
    cr_expect_eq(plot_bars(&plot, "/no/such/folder/a.svg", &err), -1);
    cr_expect_eq(err.code, ERR_FAILED);
    err_release(&err);
    remove(script);
    remove(svg);
    remove(folder);
    free(script);
    free(svg);
}
