/* A libggml-rpc that nobody may call: it takes the stock library's place in a copy of llama_cpp.
 *
 * libggml links libggml-rpc and asks it for its registry when it is loaded: that call is answered, with
 * a registry of no devices, and noted on stderr. Every other function of the stock library, C and C++,
 * is in stubs.inc (made by tripwire.py from the stock library's own symbols) and ends the process.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void trip(const char * name) {
    fprintf(stderr, "tripwire: %s was called\n", name);
    abort();
}

#define STUB(name) void name(void) { trip(#name); }
#include "stubs.inc"

/* struct ggml_backend_reg of ggml-backend-impl.h */
struct registry {
    int api_version;
    const char * (*get_name)(struct registry *);
    size_t (*get_device_count)(struct registry *);
    void * (*get_device)(struct registry *, size_t);
    void * (*get_proc_address)(struct registry *, const char *);
    void * context;
};

static const char * get_name(struct registry * self) {
    (void) self;
    return "RPC";
}

static size_t get_device_count(struct registry * self) {
    (void) self;
    return 0;
}

static void * get_device(struct registry * self, size_t index) {
    (void) self;
    (void) index;
    trip("get_device");
    return NULL;
}

/* libllama itself asks every registry for optional functions that this one does not have. */
static void * get_proc_address(struct registry * self, const char * name) {
    (void) self;
    if (strncmp(name, "ggml_backend_rpc", strlen("ggml_backend_rpc")) == 0) {
        trip(name);
    }
    return NULL;
}

struct registry * ggml_backend_rpc_reg(void) {
    static struct registry registry = { 2, get_name, get_device_count, get_device, get_proc_address, NULL };
    static int noted = 0;
    if (!noted) {
        noted = 1;
        fprintf(stderr, "tripwire: in place\n");
    }
    return &registry;
}
