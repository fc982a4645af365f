/* A tool as NVTX's headers describe one: it writes ranges of domains into the file that NVTX_TEST_LOG names, a line each.
 *
 *   init 3                version of NVTX
 *   domain topod
 *   push all-reduce 4000  message and payload
 *   pop
 *
 * With NVTX_TEST_REFUSE it does not take part.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct nvtxEventAttributes_v2 {
    uint16_t version;
    uint16_t size;
    uint32_t category;
    int32_t colorType;
    uint32_t color;
    int32_t payloadType;
    int32_t reserved0;
    union { uint64_t ullValue; double dValue; } payload;
    int32_t messageType;
    union { const char *ascii; const void *registered; } message;
} nvtxEventAttributes_t;

typedef void (*NvtxFunctionPointer)(void);
typedef struct { size_t struct_size; int (*GetModuleFunctionTable)(int module, NvtxFunctionPointer ***table, unsigned *size); } Callbacks;
typedef struct { size_t struct_size; uint32_t version; uint32_t reserved0; void (*SetInjectionNvtxVersion)(uint32_t); } VersionInfo;
typedef const void *(*GetExportTable)(uint32_t id);

static void note(const char *what, const char *name, unsigned long long number) {
    FILE *log = fopen(getenv("NVTX_TEST_LOG"), "a");
    if (!log) return;
    /* One write a line: ranks are threads. */
    char line[256];
    snprintf(line, sizeof line, "%s %s %llu\n", what, name, number);
    fputs(line, log);
    fclose(log);
}

static int the_domain;

static void *create(const char *name) {
    note("domain", name, 0);
    return &the_domain;
}

static int push(void *domain, const nvtxEventAttributes_t *event) {
    int right = domain == &the_domain && event->version == 3 && event->size == sizeof *event && event->payloadType == 1
                && event->messageType == 1;
    note(right ? "push" : "wrong", event->message.ascii, event->payload.ullValue);
    return 0;
}

static int pop(void *domain) {
    note(domain == &the_domain ? "pop" : "wrong", "-", 0);
    return 0;
}

int InitializeInjectionNvtx2(GetExportTable table) {
    const VersionInfo *version = table(3);
    const Callbacks *callbacks = table(1);
    if (!version || !callbacks || callbacks->struct_size < sizeof *callbacks) return 0;
    version->SetInjectionNvtxVersion(1);
    note("init", "-", version->version);
    if (getenv("NVTX_TEST_REFUSE")) return 0;
    NvtxFunctionPointer **functions;
    unsigned size;
    if (!callbacks->GetModuleFunctionTable(5, &functions, &size) || size < 12) return 0;
    *functions[4] = (NvtxFunctionPointer)push;
    *functions[5] = (NvtxFunctionPointer)pop;
    *functions[11] = (NvtxFunctionPointer)create;
    return 1;
}
