/* A small libnvidia-ml.so.1: two cards, enough functions for a scan. With -DOLD
 * it is the library of an old driver, which lacks many of them. With -DBROKEN
 * its driver is not loaded. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef int ret_t;
enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_LOADED = 9, TIMEOUT = 10 };

static struct card { const char *uuid, *bus; } cards[2] = {
  {"GPU-c0ffee00-0000-0000-0000-000000000001", "00000000:3B:00.0"},
  {"GPU-c0ffee00-0000-0000-0000-000000000002", "0000000F:01:00.0"},
};

#ifdef BROKEN
ret_t nvmlInit_v2(void) { return NOT_LOADED; }
#else
ret_t nvmlInit_v2(void) { return SUCCESS; }
#endif
ret_t nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(ret_t r) { (void)r; return "error of the fixture"; }
ret_t nvmlDeviceGetCount(unsigned *n) { *n = 2; return SUCCESS; }
ret_t nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return SUCCESS; }
ret_t nvmlDeviceGetHandleByIndex(unsigned i, struct card **d) { if (i > 1) return INVALID; *d = &cards[i]; return SUCCESS; }
ret_t nvmlDeviceGetHandleByIndex_v2(unsigned i, struct card **d) { return nvmlDeviceGetHandleByIndex(i, d); }
ret_t nvmlDeviceGetUUID(struct card *d, char *out, unsigned len) { snprintf(out, len, "%s", d->uuid); return SUCCESS; }
ret_t nvmlDeviceGetName(struct card *d, char *out, unsigned len) { (void)d; snprintf(out, len, "NVIDIA Fixture"); return SUCCESS; }
ret_t nvmlSystemGetDriverVersion(char *out, unsigned len) { snprintf(out, len, "418.87.00"); return SUCCESS; }

struct memory { unsigned long long total, free, used; };
ret_t nvmlDeviceGetMemoryInfo(struct card *d, struct memory *m) { (void)d; m->total = 16ULL << 30; m->used = 1ULL << 30; m->free = 15ULL << 30; return SUCCESS; }

struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char busid[32]; };
ret_t nvmlDeviceGetPciInfo_v3(struct card *d, struct pci *p) {
  memset(p, 0, sizeof *p);
  memcpy(p->busid, d->bus, strlen(d->bus));
  return SUCCESS;
}
ret_t nvmlDeviceGetPciInfo(struct card *d, struct pci *p) { return nvmlDeviceGetPciInfo_v3(d, p); }

#ifndef OLD
ret_t nvmlDeviceGetSerial(struct card *d, char *out, unsigned len) { (void)d; snprintf(out, len, "0123"); return SUCCESS; }
ret_t nvmlDeviceGetMinorNumber(struct card *d, unsigned *n) { *n = d - cards; return SUCCESS; }
ret_t nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 12080; return SUCCESS; }
struct memory2 { unsigned version; unsigned long long total, reserved, free, used; };
ret_t nvmlDeviceGetMemoryInfo_v2(struct card *d, struct memory2 *m) { (void)d; m->total = 16ULL << 30; m->reserved = 1 << 20; m->used = 2ULL << 30; return SUCCESS; }
ret_t nvmlDeviceGetMigMode(struct card *d, unsigned *now, unsigned *later) { (void)d; *now = *later = 0; return SUCCESS; }
ret_t nvmlDeviceGetNvLinkState(struct card *d, unsigned link, int *on) { (void)d; if (link > 1) return INVALID; *on = 1; return SUCCESS; }
ret_t nvmlDeviceGetNvLinkRemotePciInfo_v2(struct card *d, unsigned link, struct pci *p) { (void)link; return nvmlDeviceGetPciInfo_v3(d == cards ? cards + 1 : cards, p); }
ret_t nvmlDeviceGetNvLinkRemotePciInfo(struct card *d, unsigned link, struct pci *p) { return nvmlDeviceGetNvLinkRemotePciInfo_v2(d, link, p); }
ret_t nvmlDeviceGetTotalEnergyConsumption(struct card *d, unsigned long long *e) { (void)d; *e = 42000; return SUCCESS; }
ret_t nvmlEventSetCreate(void **set) { static int one; *set = &one; return SUCCESS; }
ret_t nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
ret_t nvmlDeviceRegisterEvents(struct card *d, unsigned long long types, void *set) { (void)d; (void)types; (void)set; return SUCCESS; }
struct event { struct card *device; unsigned long long type, data; unsigned gi, ci; };
static int told;
ret_t nvmlEventSetWait_v2(void *set, struct event *e, unsigned ms) {
  (void)set;
  if (!told++) {
    e->device = &cards[1]; e->type = 8; e->data = 48; e->gi = e->ci = 0xFFFFFFFF;
    return SUCCESS;
  }
  usleep(ms * 1000);
  return TIMEOUT;
}
ret_t nvmlEventSetWait(void *set, struct event *e, unsigned ms) { return nvmlEventSetWait_v2(set, e, ms); }
#endif
