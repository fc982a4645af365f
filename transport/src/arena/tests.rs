use std::sync::Arc;

use super::*;

fn arenas(ranks: usize) -> Vec<Arena> {
    let layout = Layout { ranks, heap_bytes: 1 << 20, crowded: false };
    let first = Arena::create(layout).unwrap();
    let others = (1..ranks).map(|own| {
        let file = first.file().try_clone().unwrap();
        Arena::open(layout, file, own).unwrap()
    });
    let others: Vec<_> = others.collect();
    std::iter::once(first).chain(others).collect()
}

#[test]
fn what_one_posts_the_others_see() {
    let all = arenas(3);
    assert_eq!(all[0].posted(1, 5), None);
    all[1].post(5, 10, 20, Some([1, 2, 3, 4, 5]));
    assert_eq!(all[0].posted(1, 5), Some((10, 20)));
    assert_eq!(all[2].words(1, 5), [1, 2, 3, 4, 5]);
    assert_eq!(all[0].posted(1, 5 + all[0].lap(0)), None, "a lap later");
    all[2].say(Word::Stage, 7);
    assert_eq!(all[0].word(2, Word::Stage).load(Ordering::Relaxed), 7);
    assert_eq!(all[0].word(1, Word::Stage).load(Ordering::Relaxed), 0);
}

#[test]
fn a_heap_ends_where_it_ends() {
    let all = arenas(2);
    let heap = all[0].layout.heap();
    assert!(all[0].in_heap(1, heap - 8, 8).is_some());
    assert!(all[0].in_heap(1, heap - 8, 9).is_none() && all[0].in_heap(2, 0, 0).is_none());
    assert!(all[0].in_heap(1, usize::MAX, 8).is_none());
    let own = all[1].in_heap(1, 4096, 100).unwrap();
    assert_eq!(all[1].registered(own), Some(4096));
    assert_eq!(all[1].registered(all[1].in_heap(0, 4096, 100).unwrap()), None);
    assert_eq!(all[1].registered(crate::memory::caller(&[0_u8; 10])), None);
}

#[test]
fn another_size_is_not_mapped() {
    let first = Arena::create(Layout { ranks: 2, heap_bytes: 0, crowded: false }).unwrap();
    let file = first.file().try_clone().unwrap();
    assert!(Arena::open(Layout { ranks: 200, heap_bytes: 0, crowded: false }, file, 1).is_err());
}

#[test]
fn a_sleeper_is_woken_by_what_is_published() {
    let mut all = arenas(2);
    let (two, one) = (Arc::new(all.pop().unwrap()), all.pop().unwrap());
    let sleeper = Arc::clone(&two);
    let asleep = std::thread::spawn(move || {
        // However the two threads run, a message between the flag and the sleep is not missed.
        while sleeper.posted(0, 0).is_none() {
            let bell = sleeper.arm();
            if sleeper.posted(0, 0).is_none() {
                sleeper.sleep(bell, Duration::from_secs(60));
            }
            sleeper.disarm();
        }
    });
    while two.sleepers().load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    one.post(0, 0, 0, None);
    asleep.join().unwrap();
    assert_eq!(two.sleepers().load(Ordering::Relaxed), 0);
}

#[test]
fn ranks_of_one_process_read_each_other() {
    let all = arenas(2);
    let limit = Duration::from_secs(20);
    let never = || Ok::<(), ()>(());
    let both = |allowed: [bool; 2]| {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| probe(&all[1], allowed[1], limit, never));
            let one = probe(&all[0], allowed[0], limit, never);
            (one.unwrap(), other.join().unwrap().unwrap())
        })
    };
    // What one rank must not, none does; who can depends on the kernel.
    assert_eq!(both([true, false]), (false, false));
}

#[test]
fn a_rank_that_says_nothing_is_named() {
    let all = arenas(3);
    std::thread::scope(|scope| {
        // Rank 2 never answers: one waits until the limit, the other is told meanwhile.
        let one = scope.spawn(|| probe(&all[0], true, Duration::ZERO, || Ok::<(), ()>(())));
        let told = probe(&all[1], true, Duration::from_secs(60), || Err("told"));
        assert!(matches!(told, Err(Unanswered::Stopped("told"))), "{told:?}");
        let silent = one.join().unwrap();
        assert!(matches!(silent, Err(Unanswered::Silent(1 | 2))), "{silent:?}");
    });
}
