//! The kernels' source, built by the host's C++ compiler and run over host memory: every element type and operation against plain
//! arithmetic, with NaN, infinities, denormals, ragged tails and places that are not aligned for wide loads.
//!
//! What this does not show: the two conversions between half and single precision that a GPU has as instructions, and that
//! threads run at the same time.
#![expect(clippy::print_stdout, reason = "a skipped test says so")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_lossless,
    reason = "values of every type are made of random bits"
)]
#![expect(unsafe_code, reason = "calls what a C++ compiler made")]

use std::ffi::c_void;
use std::process::Command;
use std::sync::OnceLock;

use half::{bf16, f16};
use libloading::{Library, Symbol};
use topology::Protocol;
use transport::{ElementType, ReduceOp};
use transport_cuda::{FLAGGED_PARAMETERS, SOURCES, flagged_name, name};

type Fold =
    unsafe extern "C" fn(u32, u32, *const [*const c_void; SOURCES], u32, *mut c_void, u64, i32);

/// `None` where there is no C++ compiler.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let build = || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kernels.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/flagged.cu");
        let mut compiler = Command::new("g++");
        compiler.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]);
        compiler.args(["-ffp-contract=off", "-DTOPOD_HOST", "-x", "c++", source]);
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&file);
        match compiler.output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => {
                println!("skipped: g++: {error}");
                return None;
            }
        }
        // SAFETY: What was just built has no initialisers.
        Some(unsafe { Library::new(file) }.unwrap())
    };
    LIBRARY.get_or_init(build).as_ref()
}

/// What a kernel must do with a type, in words of this language.
trait Number: Copy + PartialEq + std::fmt::Debug {
    const ELEMENT: ElementType;
    fn combined(self, other: Self, op: ReduceOp) -> Self;
    fn over(self, ranks: i32) -> Self;
    /// From random bits, so that every special value comes up.
    fn of(bits: u64) -> Self;
    /// To compare with: equal for all that are not a number.
    fn bits(self) -> u64;
}

macro_rules! integer {
    ($($type:ident $element:ident),*) => {$(
        impl Number for $type {
            const ELEMENT: ElementType = ElementType::$element;
            fn combined(self, other: Self, op: ReduceOp) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => self.wrapping_add(other),
                    ReduceOp::Prod => self.wrapping_mul(other),
                    ReduceOp::Min => self.min(other),
                    ReduceOp::Max => self.max(other),
                    ReduceOp::And => self & other,
                    _ => self | other,
                }
            }
            fn over(self, ranks: i32) -> Self {
                (i128::from(self) / i128::from(ranks)) as Self
            }
            fn of(bits: u64) -> Self {
                bits as Self
            }
            fn bits(self) -> u64 {
                self as u64
            }
        }
    )*};
}

macro_rules! float {
    ($($type:ident $element:ident $wide:ident $of:expr, $into:expr, $narrow:expr);*) => {$(
        impl Number for $type {
            const ELEMENT: ElementType = ElementType::$element;
            fn combined(self, other: Self, op: ReduceOp) -> Self {
                let (a, b): ($wide, $wide) = ($into(self), $into(other));
                $narrow(match op {
                    ReduceOp::Sum | ReduceOp::Avg => a + b,
                    ReduceOp::Prod => a * b,
                    _ if a.is_nan() || b.is_nan() => $wide::NAN,
                    ReduceOp::Min => if a < b { a } else { b },
                    _ => if a > b { a } else { b },
                })
            }
            fn over(self, ranks: i32) -> Self {
                $narrow($into(self) / ranks as $wide)
            }
            fn of(bits: u64) -> Self {
                $of(bits)
            }
            fn bits(self) -> u64 {
                if $into(self).is_nan() { u64::MAX } else { self.to_bits() as u64 }
            }
        }
    )*};
}

integer!(i8 I8, u8 U8, i32 I32, i64 I64);
float! {
    f32 F32 f32 |bits| f32::from_bits(bits as u32), |x: f32| x, |x: f32| x;
    f64 F64 f64 f64::from_bits, |x: f64| x, |x: f64| x;
    f16 F16 f32 |bits| f16::from_bits(bits as u16), |x: f16| x.to_f32(), f16::from_f32;
    bf16 Bf16 f32 |bits| bf16::from_bits(bits as u16), |x: bf16| x.to_f32(), bf16::from_f32
}

/// A stream of numbers from a seed: all bits random, with small ones and special ones between.
fn numbers<T: Number>(seed: u64, count: usize) -> Vec<T> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ state
    };
    (0..count).map(|_| T::of(next())).collect()
}

/// `shift` elements before each place leave it unaligned.
fn check<T: Number>(
    op: ReduceOp,
    sources: usize,
    count: usize,
    shift: usize,
    (grid, block): (u32, u32),
) {
    let (Some(library), Some(function)) = (library(), name(T::ELEMENT, op)) else { return };
    let symbol = function.replace("topod_", "topod_host_");
    // SAFETY: The source defines it so.
    let fold: Symbol<'_, Fold> = unsafe { library.get(symbol.as_bytes()) }.unwrap();
    let inputs: Vec<Vec<T>> = (0..sources).map(|s| numbers(s as u64 + 1, count + shift)).collect();
    let mut target = numbers::<T>(99, count + shift + 1);
    let behind = target[count + shift];
    let mut at = [std::ptr::null(); SOURCES];
    for (place, input) in at.iter_mut().zip(&inputs) {
        *place = input[shift..].as_ptr().cast();
    }
    let ranks = if op == ReduceOp::Avg { sources as i32 } else { 0 };
    // SAFETY: Each place has `count` elements; the target is no source.
    unsafe {
        fold(
            grid,
            block,
            &raw const at,
            sources as u32,
            target[shift..].as_mut_ptr().cast(),
            count as u64,
            ranks,
        );
    }
    for i in 0..count {
        let all = inputs.iter().map(|input| input[shift + i]);
        let expect = all.reduce(|a, b| a.combined(b, op)).unwrap();
        let expect = if ranks > 0 { expect.over(ranks) } else { expect };
        let found = target[shift + i];
        assert_eq!(
            found.bits(),
            expect.bits(),
            "{symbol}, {sources} sources, element {i} of {count}: {found:?}, not {expect:?}"
        );
    }
    assert_eq!(target[count + shift].bits(), behind.bits(), "{symbol} wrote behind its end");
}

fn check_type<T: Number>() {
    for op in ReduceOp::ALL {
        for (sources, count, shift) in [
            (1, 33, 0),
            (2, 5000, 0),
            (2, 4999, 1),
            (3, 1, 0),
            (3, 0, 0),
            (8, 1037, 0),
            (16, 259, 3),
        ] {
            for shape in [(1, 1), (3, 32)] {
                check::<T>(op, sources, count, shift, shape);
            }
        }
    }
}

#[test]
fn every_type_and_operation_is_plain_arithmetic() {
    check_type::<f32>();
    check_type::<f64>();
    check_type::<f16>();
    check_type::<bf16>();
    check_type::<i8>();
    check_type::<i32>();
    check_type::<i64>();
    check_type::<u8>();
}

/// Every value of 16 bits there is, by adding zero to it: widened and narrowed, it is what it was.
#[test]
fn every_half_and_every_bfloat_survives() {
    fn all<T: Number>() {
        let Some(library) = library() else { return };
        let values: Vec<T> = (0..=u64::from(u16::MAX)).map(T::of).collect();
        let nothing = vec![T::of(0x8000); values.len()];
        let mut target = nothing.clone();
        let mut at = [std::ptr::null(); SOURCES];
        at[0] = values.as_ptr().cast();
        // Negative zero, which changes no sum.
        at[1] = nothing.as_ptr().cast();
        let symbol = name(T::ELEMENT, ReduceOp::Sum).unwrap().replace("topod_", "topod_host_");
        // SAFETY: The source defines it so.
        let fold: Symbol<'_, Fold> = unsafe { library.get(symbol.as_bytes()) }.unwrap();
        // SAFETY: Each place has that many elements; the target is no source.
        unsafe {
            fold(2, 64, &raw const at, 2, target.as_mut_ptr().cast(), values.len() as u64, 0)
        };
        for (value, found) in values.iter().zip(&target) {
            assert_eq!(found.bits(), value.bits(), "{value:?}");
        }
    }
    all::<f16>();
    all::<bf16>();
}

/// Addresses and words of the kernels of messages with flags, as `flagged.cu` lays them out.
type Flagged = unsafe extern "C" fn(u32, u32, u32, *const u64, *const u32);

/// A block that sends to a slot of its own, and receives from there: `target = target op input`, through a message. The slot's number is the
/// last before flags begin again.
fn check_flagged<T: Number>(protocol: Protocol, op: ReduceOp, count: usize, shift: usize) {
    const READS_AND_SENDS: u32 = 8 | 2;
    const COMBINES_INTO: u32 = 1 | 8 | 16 | 4;
    const LAST: u64 = u32::MAX as u64;
    let Some(library) = library() else { return };
    let function = flagged_name(protocol, T::ELEMENT).unwrap();
    let symbol = function.replace("topod_", "topod_block_");
    // SAFETY: The source defines it so.
    let kernel: Symbol<'_, Flagged> = unsafe { library.get(symbol.as_bytes()) }.unwrap();
    let input = numbers::<T>(1, count + shift);
    let before = numbers::<T>(2, count + shift + 1);
    let mut target = before.clone();
    // Two slots of 512 words, in lines.
    let words = 512_u32;
    let slot_bytes = match protocol {
        Protocol::Ll => words as usize * 16,
        _ => (words as usize).div_ceil(15) * 128,
    };
    let mut slots = vec![0_u128; 2 * slot_bytes / 16];
    // Given up; steps of a lane; blocks done; credits; what a host watches.
    let mut state = [0_u64; 8];
    state[3] = LAST;
    let place =
        |index: usize, state: &mut [u64; 8]| state[index..].as_mut_ptr().expose_provenance() as u64;
    let mut places = vec![0_u64; FLAGGED_PARAMETERS[0] / 8];
    places[0] = input[shift..].as_ptr().expose_provenance() as u64;
    places[1] = target[shift..].as_mut_ptr().expose_provenance() as u64;
    places[3] = place(0, &mut state);
    places[4] = place(1, &mut state);
    places[5] = place(2, &mut state);
    places[6] = places[1];
    let slots_at = slots.as_mut_ptr().expose_provenance() as u64;
    let ends = [slots_at, place(4, &mut state), place(5, &mut state)];
    places[7..10].copy_from_slice(&ends);
    places[10..13].copy_from_slice(&[slots_at, place(3, &mut state), place(6, &mut state)]);
    let number = match op {
        ReduceOp::Sum | ReduceOp::Avg => 0,
        ReduceOp::Prod => 1,
        ReduceOp::Min => 2,
        ReduceOp::Max => 3,
        ReduceOp::And => 4,
        _ => 5,
    };
    let ranks = if op == ReduceOp::Avg { 2 } else { 0 };
    let mut program = vec![0_u32; FLAGGED_PARAMETERS[1] / 4];
    let elements = count as u32;
    program[..7].copy_from_slice(&[number, ranks, elements, 2, words, 1, 0]);
    let low = LAST as u32;
    program[7..15].copy_from_slice(&[15, 2, low, 0, 10, low, 0, 20]);
    let both = 1 << 6 | 1 << 8;
    let steps = [READS_AND_SENDS | elements << 16, 0, COMBINES_INTO | both | elements << 16, 0, 0];
    program[15..20].copy_from_slice(&steps);
    // SAFETY: Every address is of memory as long as the program says.
    unsafe { kernel(0, 1, 256, places.as_ptr(), program.as_ptr()) };
    for i in 0..count {
        let expect = before[shift + i].combined(input[shift + i], op);
        let expect = if ranks > 0 { expect.over(2) } else { expect };
        let found = target[shift + i];
        let same = found.bits() == expect.bits();
        assert!(same, "{symbol}, {op}, element {i} of {count}: {found:?}, not {expect:?}");
    }
    assert_eq!(target[count + shift].bits(), before[count + shift].bits(), "{symbol} wrote behind");
    for i in 0..shift {
        assert_eq!(target[i].bits(), before[i].bits(), "{symbol} wrote before its place");
    }
    // One message consumed, on through the wrap, and told to the host.
    let low = |word: u64| word as u32;
    assert_eq!([state[4], state[5], state[6]].map(low), [0, 11, 21], "{symbol}");
    assert_eq!(state[2], 0, "the count of blocks begins again");
    if protocol == Protocol::Ll {
        assert!(slots.iter().all(|line| *line == 0), "{symbol} left flags that come again");
    }
}

fn check_flagged_type<T: Number>() {
    for protocol in [Protocol::Ll, Protocol::Ll128] {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.combines(T::ELEMENT)) {
            for (count, shift) in [(0, 0), (1, 0), (7, 1), (255, 0), (333, 0), (509, 3), (512, 1)] {
                check_flagged::<T>(protocol, op, count, shift);
            }
        }
    }
}

#[test]
fn messages_with_flags_bring_plain_arithmetic() {
    check_flagged_type::<f32>();
    check_flagged_type::<f64>();
    check_flagged_type::<f16>();
    check_flagged_type::<bf16>();
    check_flagged_type::<i8>();
    check_flagged_type::<i32>();
    check_flagged_type::<i64>();
    check_flagged_type::<u8>();
}
