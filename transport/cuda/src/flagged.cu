/* Small messages that travel with their flags: one launch does a rank's whole part of an operation.
 *
 *   LL      8 bytes of data in 16: a word of data and a word of flag twice, each pair stored at once
 *   LL128   120 bytes of data in 128, then 8 of flag: stores and loads of eight threads, which must stay whole
 *
 *   block   a lane of the schedule, its steps in order: wait for slot and steps of other lanes; read, receive, combine, send, write
 *   sender  ── data and flag ──▶ slot in the receiver's memory        flag = the message's number on its connection
 *           ◀── credit ──        word in the sender's memory          credit = messages consumed
 *
 * Who receives polls the slot until every piece has the flag of this message: data needs no barrier of its own. A slot is written
 * again once the credit says that it was consumed. LL's flags have 31 bits of the number and one that is always set, so that fresh memory,
 * which is nought, has no flag; the last messages before the 31 bits begin again leave their slots cleared. LL128's have 64 bits, which last.
 *
 * Every wait looks at a word in the host's memory too. Once that is set, nothing is waited for, sent, written or credited any more: nobody
 * takes what was not received for data. All blocks must be on the device at once.
 *
 * Follows kernels.cu, for NVRTC in the same text.
 */

#ifdef TOPOD_HOST
#include "kernels.cu"
#include <sched.h>
#include <time.h>
#endif

/* As many as parameters of 4096 bytes hold. */
enum { LANES = 40, WORDS = 512 };

/* Addresses of a lane's connections; nought where it has none. */
struct Ends {
    u64 receive, credit_given, consumed;
    u64 send, credit_taken, posted;
};

/* Addresses alone: the double of the driver tells them by that. */
struct Places {
    /* Input, output, scratch. */
    u64 buffers[3];
    /* Of the host: set where the operation is given up. */
    u64 abort;
    /* Steps done, by lane, and blocks done. */
    u64 progress, finished;
    /* What is divided at the end. */
    u64 divided;
    Ends lanes[LANES];
};

/* Head, then HEAD_OF_LANE words for each lane, then steps. */
struct Program {
    u32 words[WORDS];
};

enum { OPERATION, RANKS, DIVIDED, SLOTS, SLOT_WORDS, TURN_LOW, TURN_HIGH, HEAD };
enum { START, STEPS, RECEIVED_LOW, RECEIVED_HIGH, CONSUMED, SENT_LOW, SENT_HIGH, POSTED, HEAD_OF_LANE };

/* A step's first word: what it does, buffers, whether others wait for it, how many it waits for, elements. */
enum { RECEIVES = 1, SENDS = 2, WRITES = 4, READS = 8, COMBINES = 16, LOCAL = 32, MARKED = 1 << 10 };

enum { SUM, PROD, MIN, MAX, AND, OR };

#ifdef TOPOD_HOST

DEVICE u32 load(u64 at, u32) { return __atomic_load_n((const u32 *)at, __ATOMIC_ACQUIRE); }
DEVICE u64 load(u64 at, u64) { return __atomic_load_n((const u64 *)at, __ATOMIC_ACQUIRE); }
DEVICE void store(u64 at, u32 value) { __atomic_store_n((u32 *)at, value, __ATOMIC_RELEASE); }
DEVICE void store(u64 at, u64 value) { __atomic_store_n((u64 *)at, value, __ATOMIC_RELEASE); }
DEVICE void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
DEVICE void fence_system() { fence(); }
DEVICE u32 counted(u64 at) { return __atomic_fetch_add((u32 *)at, 1u, __ATOMIC_SEQ_CST); }
/* A block is one thread of the host, which does what all threads do, in turn. */
DEVICE bool any_of_block(bool one) { return one; }
DEVICE u32 thread() { return 0; }
DEVICE u32 threads() { return 1; }

/* Whether to look at the host's word at the nth look; lets others run. */
DEVICE bool looks(u32 &times) {
    if (times < 64) {
        times++;
        sched_yield();
    } else {
        struct timespec pause = {0, 50000};
        nanosleep(&pause, 0);
    }
    return true;
}

#else

DEVICE u32 load(u64 at, u32) { return *(const volatile u32 *)at; }
DEVICE u64 load(u64 at, u64) { return *(const volatile u64 *)at; }
DEVICE void store(u64 at, u32 value) { *(volatile u32 *)at = value; }
DEVICE void store(u64 at, u64 value) { *(volatile u64 *)at = value; }
DEVICE void fence() { __threadfence(); }
DEVICE void fence_system() { __threadfence_system(); }
DEVICE u32 counted(u64 at) { return atomicAdd((u32 *)at, 1u); }
DEVICE bool any_of_block(bool one) { return __syncthreads_or(one); }
DEVICE u32 thread() { return threadIdx.x; }
DEVICE u32 threads() { return blockDim.x; }

/* A look at the host's memory takes as long as a thousand at the device's. */
DEVICE bool looks(u32 &times) { return ++times % 1024 == 0; }

#endif

/* Waits until a counter is not below a value, on through the wrap; false where the operation is given up. */
template <typename U> DEVICE bool reached(u64 at, U value, u64 abort) {
    u32 times = 0;
    /* Below it differs by more than half of all numbers. */
    while ((U)(load(at, value) - value) >> (8 * sizeof(U) - 1)) {
        if (looks(times) && load(abort, 0u)) return false;
    }
    return true;
}

struct Ll {
    /* Words of 8 bytes that a thread has of a message in one turn. */
    enum { WIDTH = 1 };
    static DEVICE u32 slot_bytes(u32 words) { return words * 16; }
    static DEVICE u32 first() { return thread(); }
    static DEVICE u32 stride() { return threads(); }
    static DEVICE u32 bound(u32 words) { return words; }
    static DEVICE u32 place(u32 unit) { return unit; }
    static DEVICE u32 held(u32) { return 1; }
    static DEVICE u32 flag(u64 number) { return (u32)number | 0x80000000u; }

    static DEVICE void put(u64 at, u64 value, u32 flag) {
#ifdef TOPOD_HOST
        const u64 flagged = (u64)flag << 32;
        store(at, (value & 0xffffffffu) | flagged);
        store(at + 8, value >> 32 | flagged);
#else
        asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(at), "r"((u32)value), "r"(flag), "r"((u32)(value >> 32))
                     : "memory");
#endif
    }

    static DEVICE void send(u64 slot, u32 unit, u32, u64 number, const u64 *value) { put(slot + (u64)unit * 16, value[0], flag(number)); }

    static DEVICE bool receive(u64 slot, u32 unit, u32, u64 number, u64 *value, u64 abort) {
        const u64 at = slot + (u64)unit * 16;
        const u32 expected = flag(number);
        u32 times = 0;
        for (;;) {
#ifdef TOPOD_HOST
            const u64 a = load(at, (u64)0), b = load(at + 8, (u64)0);
            const u32 low = (u32)a, first = (u32)(a >> 32), high = (u32)b, second = (u32)(b >> 32);
#else
            u32 low, first, high, second;
            asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(low), "=r"(first), "=r"(high), "=r"(second)
                         : "l"(at)
                         : "memory");
#endif
            if (first == expected && second == expected) {
                value[0] = (u64)high << 32 | low;
                return true;
            }
            if (looks(times) && load(abort, 0u)) return false;
        }
    }

    /* Whether a number is among the last before flags come again. */
    static DEVICE bool cleans(u64 number, u32 slots) { return ((u32)number & 0x7fffffffu) >= 0x80000000u - slots; }
    static DEVICE void clean(u64 slot, u32 unit) { put(slot + (u64)unit * 16, 0, 0); }
};

struct Ll128 {
    static DEVICE u32 lines(u32 words) { return (words + 14) / 15; }
    static DEVICE u32 slot_bytes(u32 words) { return lines(words) * 128; }
    static DEVICE bool cleans(u64, u32) { return false; }
    static DEVICE void clean(u64, u32) {}
#ifdef TOPOD_HOST
    /* A line in a turn. */
    enum { WIDTH = 15 };
    static DEVICE u32 first() { return 0; }
    static DEVICE u32 stride() { return 1; }
    static DEVICE u32 bound(u32 words) { return lines(words); }
    static DEVICE u32 place(u32 unit) { return unit * 15; }
    static DEVICE u32 held(u32) { return 15; }

    static DEVICE void send(u64 slot, u32 unit, u32, u64 number, const u64 *value) {
        const u64 at = slot + (u64)unit * 128;
        for (u32 w = 0; w < 15; w++) __atomic_store_n((u64 *)(at + 8 * w), value[w], __ATOMIC_RELAXED);
        store(at + 120, number);
    }

    static DEVICE bool receive(u64 slot, u32 unit, u32, u64 number, u64 *value, u64 abort) {
        const u64 at = slot + (u64)unit * 128;
        u32 times = 0;
        while (load(at + 120, (u64)0) != number) {
            if (looks(times) && load(abort, 0u)) return false;
        }
        for (u32 w = 0; w < 15; w++) value[w] = __atomic_load_n((const u64 *)(at + 8 * w), __ATOMIC_RELAXED);
        return true;
    }
#else
    /* Eight threads a line, 16 bytes each; the last has 8 of data and the flag. A warp goes on as one, over four lines. */
    enum { WIDTH = 2 };
    static DEVICE u32 first() { return thread(); }
    static DEVICE u32 stride() { return threads(); }
    static DEVICE u32 bound(u32 words) { return (lines(words) + 3) / 4 * 32; }
    static DEVICE u32 place(u32 unit) { return unit / 8 * 15 + unit % 8 * 2; }
    static DEVICE u32 held(u32 unit) { return unit % 8 == 7 ? 1 : 2; }

    static DEVICE void send(u64 slot, u32 unit, u32 words, u64 number, const u64 *value) {
        const u64 second = unit % 8 == 7 ? number : value[1];
        __syncwarp();
        if (unit / 8 < lines(words))
            asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(slot + (u64)unit * 16), "l"(value[0]), "l"(second) : "memory");
    }

    static DEVICE bool receive(u64 slot, u32 unit, u32 words, u64 number, u64 *value, u64 abort) {
        const bool there = unit / 8 < lines(words), flags = unit % 8 == 7;
        u32 times = 0;
        for (;;) {
            if (there)
                asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                             : "=l"(value[0]), "=l"(value[1])
                             : "l"(slot + (u64)unit * 16)
                             : "memory");
            /* The loads of a line are one: what came with the flag is of its message. */
            if (__all_sync(0xffffffffu, !there || !flags || value[1] == number)) return true;
            bool ends = false;
            if (looks(times)) ends = load(abort, 0u) != 0;
            if (__any_sync(0xffffffffu, ends)) return false;
        }
    }
#endif
};

template <typename T> union Eight {
    u64 word;
    T each[8 / sizeof(T)];
    DEVICE Eight() {}
};

/* Eight bytes of a slice of elements; nought behind its end. */
template <typename T> DEVICE u64 read(u64 slice, u32 word, u32 elements) {
    const u32 width = 8 / sizeof(T), start = word * width;
    if (slice % 8 == 0 && start + width <= elements) return ((const u64 *)slice)[word];
    Eight<T> all;
    all.word = 0;
    for (u32 e = 0; e < width; e++)
        if (start + e < elements) all.each[e] = ((const T *)slice)[start + e];
    return all.word;
}

template <typename T> DEVICE void write(u64 slice, u32 word, u32 elements, u64 value) {
    const u32 width = 8 / sizeof(T), start = word * width;
    if (slice % 8 == 0 && start + width <= elements) {
        ((u64 *)slice)[word] = value;
        return;
    }
    Eight<T> all;
    all.word = value;
    for (u32 e = 0; e < width; e++)
        if (start + e < elements) ((T *)slice)[start + e] = all.each[e];
}

template <typename T, typename Op> DEVICE u64 each_combined(u64 a, u64 b) {
    Eight<T> x, y;
    x.word = a;
    y.word = b;
#pragma unroll
    for (u32 e = 0; e < 8 / sizeof(T); e++) x.each[e] = combined<T, Op>(x.each[e], y.each[e]);
    return x.word;
}

template <typename T> DEVICE u64 combined_by(u32 op, u64 a, u64 b) {
    switch (op) {
    case SUM: return each_combined<T, Sum>(a, b);
    case PROD: return each_combined<T, Prod>(a, b);
    case MIN: return each_combined<T, Min>(a, b);
    case MAX: return each_combined<T, Max>(a, b);
    case AND: return a & b;
    default: return a | b;
    }
}

/* What a step does to a message, by this thread; whether it gave up. */
template <typename T, typename P>
DEVICE bool moved(u32 does, u32 op, u32 elements, u64 source, u64 target, u64 from, u64 received, u64 to, u64 sent, u64 abort) {
    const u32 words = (u32)(((u64)elements * sizeof(T) + 7) / 8);
    bool lost = false;
    for (u32 unit = P::first(); unit < P::bound(words) && !lost; unit += P::stride()) {
        const u32 place = P::place(unit), held = P::held(unit);
        u64 value[P::WIDTH], other[P::WIDTH];
#pragma unroll
        for (u32 w = 0; w < P::WIDTH; w++) {
            value[w] = does & READS && w < held ? read<T>(source, place + w, elements) : 0;
            other[w] = does & LOCAL && w < held ? read<T>(target, place + w, elements) : 0;
        }
        if (does & RECEIVES) lost = !P::receive(from, unit, words, received, other, abort);
        if (lost) break;
#pragma unroll
        for (u32 w = 0; w < P::WIDTH; w++) {
            if (does & COMBINES) {
                /* What is there comes first, where both are here. */
                value[w] = does & LOCAL ? combined_by<T>(op, other[w], value[w]) : combined_by<T>(op, value[w], other[w]);
            } else if (does & RECEIVES) {
                value[w] = other[w];
            }
        }
        if (does & SENDS) P::send(to, unit, words, sent, value);
        if (does & WRITES) {
#pragma unroll
            for (u32 w = 0; w < P::WIDTH; w++)
                if (w < held) write<T>(target, place + w, elements, value[w]);
        }
    }
    return lost;
}

/* The block that is done last divides. */
template <typename T> DEVICE void divide_last(const Places &places, const u32 *head) {
    if (!head[RANKS]) return;
    bool last = false;
    if (thread() == 0) {
        fence();
        last = counted(places.finished) == gridDim.x - 1;
        if (last) store(places.finished, 0u);
        fence();
    }
    if (!any_of_block(last)) return;
    T *const values = (T *)places.divided;
    for (u32 e = thread(); e < head[DIVIDED]; e += threads()) values[e] = divided<T>(values[e], (i32)head[RANKS]);
}

DEVICE u64 joined(u32 low, u32 high) { return (u64)high << 32 | low; }

/* A lane's steps, by a block. */
template <typename T, typename P> DEVICE void flagged(const Places &places, const Program &program) {
    const u32 *const head = program.words, *const own = head + HEAD + blockIdx.x * HEAD_OF_LANE;
    const Ends &ends = places.lanes[blockIdx.x];
    const u32 slots = head[SLOTS], slot_words = head[SLOT_WORDS], slot_bytes = P::slot_bytes(slot_words);
    const u64 turn = joined(head[TURN_LOW], head[TURN_HIGH]) << 24;
    u64 received = joined(own[RECEIVED_LOW], own[RECEIVED_HIGH]), sent = joined(own[SENT_LOW], own[SENT_HIGH]);
    u32 consumed = own[CONSUMED], posted = own[POSTED];
    u32 from = (u32)(received % slots), to = (u32)(sent % slots);
    const u32 *word = head + own[START];
    bool lost = false;
    for (u32 step = 0; step < own[STEPS] && !lost; step++) {
        const u32 does = *word++, elements = does >> 16, waits = does >> 11 & 31u;
        const u32 source = does & READS ? *word++ : 0, target = does & (WRITES | LOCAL) ? *word++ : 0;
        if (waits || does & SENDS) {
            if (thread() == 0) {
                for (u32 w = 0; w < waits && !lost; w++) {
                    const u64 at = places.progress + 8 * (word[w] >> 24);
                    lost = !reached<u64>(at, turn + (word[w] & 0xffffffu) + 1, places.abort);
                }
                fence();
                /* The slot is free once so many were consumed. */
                if (does & SENDS && !lost) lost = !reached<u32>(ends.credit_taken, (u32)sent + 1 - slots, places.abort);
            }
            lost = any_of_block(lost);
            if (lost) break;
        }
        word += waits;
        const u64 slot = ends.receive + (u64)from * slot_bytes;
        lost = moved<T, P>(does & 63u, head[OPERATION], elements, places.buffers[does >> 6 & 3u] + (u64)source * sizeof(T),
                           places.buffers[does >> 8 & 3u] + (u64)target * sizeof(T), slot, received,
                           ends.send + (u64)to * slot_bytes, sent, places.abort);
        lost = any_of_block(lost);
        if (lost) break;
        if (does & RECEIVES) {
            if (P::cleans(received, slots)) {
                for (u32 unit = thread(); unit < slot_words; unit += threads()) P::clean(slot, unit);
                fence_system();
                any_of_block(false);
            }
            received++, consumed++;
            from = from + 1 == slots ? 0 : from + 1;
        }
        if (does & SENDS) {
            sent++, posted++;
            to = to + 1 == slots ? 0 : to + 1;
        }
        if (thread() == 0) {
            if (does & RECEIVES) {
                store(ends.credit_given, (u32)received);
                /* For whoever watches from the host. */
                store(ends.consumed, consumed);
            }
            if (does & SENDS) store(ends.posted, posted);
            if (does & MARKED) {
                fence();
                store(places.progress + 8 * blockIdx.x, turn + step + 1);
            }
        }
    }
    if (!lost) divide_last<T>(places, head);
}

#ifdef TOPOD_HOST
/* One block of the grid. */
#define FLAGGED(protocol, name, type)                                                                                              \
    extern "C" void topod_block_##name(u32 number, u32 grid, u32, const Places *places, const Program *program) {                 \
        gridDim.x = grid;                                                                                                          \
        blockIdx.x = number;                                                                                                       \
        flagged<type, protocol>(*places, *program);                                                                                \
    }
#else
#define FLAGGED(protocol, name, type)                                                                                              \
    extern "C" __global__ void __launch_bounds__(512)                                                                              \
        topod_##name(const __grid_constant__ Places places, const __grid_constant__ Program program) {                            \
        flagged<type, protocol>(places, program);                                                                                  \
    }
#endif

#define BOTH(name, type)                                                                                                           \
    FLAGGED(Ll, ll_##name, type)                                                                                                   \
    FLAGGED(Ll128, ll128_##name, type)

BOTH(f32, float)
BOTH(f64, double)
BOTH(f16, f16)
BOTH(bf16, bf16)
BOTH(i8, i8)
BOTH(i32, i32)
BOTH(i64, i64)
BOTH(u8, u8)
