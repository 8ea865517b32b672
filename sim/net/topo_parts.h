/* SPDX-License-Identifier: Apache-2.0
 * Parts of reading a topology file: the network between hosts and the inside of a host. Used by
 * topo.c alone; the fields and their meaning are in topo.h. */
#pragma once

#include "base/doc.h"
#include "net/topo.h"

enum { TOPO_LEAF_HOSTS = 32 }; /* where a file does not say: a scalable unit of the SuperPODs */

/* A member that must be there: 0, or -1 with a fault (also when `got` is one already). */
int topo_need(struct doc *doc, const json_t *object, const char *key, int got, struct err *err);

/* Figures need a source beside them. */
int topo_need_source(struct doc *doc, const json_t *object, struct err *err);

/* The members "network", "host" and "machine" of the file. 0, or -1 with all faults. The first
 * needs topo->accel, hosts and full_host; "host" needs "network". */
int topo_read_network(struct doc *doc, struct topo *topo, struct err *err);
int topo_read_host(struct doc *doc, struct topo *topo, struct err *err);
int topo_read_machine(struct doc *doc, struct topo *topo, struct err *err);

/* The member "hands"; without it all figures are 0. */
int topo_read_hands(struct doc *doc, struct topo *topo, struct err *err);

/* Fills what topo->host leaves open with what hosts of such accelerators usually have. */
void topo_fill_host(struct topo *topo);

/* Whether the sides of a torus give the hosts that there are (after resizing). 0, or -1. */
int topo_check_dims(const struct topo *topo, struct err *err);
