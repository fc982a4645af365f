//! Groups within a group.

use std::ffi::c_void;
use std::ptr;

use topology::{Plan, Rank};
use transport::even::full_plan;
use transport::{Communicator, ConnectError, Options};

use crate::communicator::CommunicatorHandle;
use crate::error::{Error, Status, array, borrow, give, give_handle, guard, take};
use crate::options::OptionsHandle;
use crate::plan::PlanHandle;

/// Makes the plan of a group whose ranks have these numbers in the group it is made of; it must be the same on every rank.
/// The library takes the plan and frees it.
pub type Planner = Option<
    unsafe extern "C" fn(
        ranks: *const u32,
        count: usize,
        context: *mut c_void,
        plan: *mut *mut PlanHandle,
    ) -> Status,
>;

/// Asks a planner; without one, or where it fails, the plan is even. What failed is said by the second.
fn ask(planner: Planner, context: *mut c_void, ranks: &[Rank], own: u32) -> (Plan, Option<Error>) {
    let even = full_plan(u32::try_from(ranks.len()).unwrap_or(u32::MAX), 2);
    let Some(planner) = planner else { return (even, None) };
    let numbers: Vec<u32> = ranks.iter().map(|rank| rank.0).collect();
    let mut plan = ptr::null_mut();
    // SAFETY: A planner by the caller's word; it is given an array and a place.
    let status = unsafe { planner(numbers.as_ptr(), numbers.len(), context, &raw mut plan) };
    // SAFETY: What a planner leaves is a plan of this library, by the caller's word.
    let taken = unsafe { take(plan) };
    match taken {
        Some(made) if status == Status::Ok => (made.0, None),
        _ => {
            // The other ranks are not left waiting: they hold another plan, and refuse this one's.
            let mut refused = even;
            refused.assumptions.push(format!("the planner of rank {own} failed"));
            (
                refused,
                Some(Error::new(Status::Plan, format!("the planner gave no plan ({status:?})"))),
            )
        }
    }
}

/// Makes one group of all ranks of each colour, in the order of `key` and then of rank; none for ranks of a negative colour,
/// which get a null handle. Every rank calls it. Without a planner the groups' plans are even ones.
///
/// # Safety
/// `communicator` is one, `planner` is null or one that can be called with `context`, `options` is null or options, `group` has
/// room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_split(
    communicator: *const CommunicatorHandle,
    colour: i32,
    key: i64,
    planner: Planner,
    context: *mut c_void,
    options: *const OptionsHandle,
    group: *mut *mut CommunicatorHandle,
) -> Status {
    guard(|| {
        let colour = u32::try_from(colour).ok();
        let make = |communicator: &mut Communicator, plan: &mut Ask<'_>, settings| {
            communicator.split(colour, key, plan, settings)
        };
        // SAFETY: By the caller's word.
        unsafe { leave(communicator, planner, context, options, group, make) }
    })
}

/// Makes one group of each list of ranks, in the order of the list; a null handle for a rank in no list. Every rank calls it with
/// the same lists: `lengths` has the lengths of `count` lists, which lie one after the other in `ranks`. With lists along each
/// dimension of a grid of ranks these are the groups of data, tensor and pipeline parallelism.
///
/// # Safety
/// As topod_split; `lengths` has `count` numbers, `ranks` as many as they add up to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_subgroups(
    communicator: *const CommunicatorHandle,
    ranks: *const u32,
    lengths: *const usize,
    count: usize,
    planner: Planner,
    context: *mut c_void,
    options: *const OptionsHandle,
    group: *mut *mut CommunicatorHandle,
) -> Status {
    guard(|| {
        // SAFETY: By the caller's word.
        let lengths = unsafe { array(lengths, count, "lengths") }?;
        let all = lengths.iter().try_fold(0_usize, |sum, length| sum.checked_add(*length));
        let all = all.ok_or_else(|| Error::invalid("lengths add up to more than there can be"))?;
        // SAFETY: By the caller's word.
        let mut rest = unsafe { array(ranks, all, "ranks") }?;
        let mut lists = Vec::with_capacity(lengths.len());
        for length in lengths {
            let (list, after) = rest.split_at(*length);
            lists.push(list.iter().copied().map(Rank).collect::<Vec<_>>());
            rest = after;
        }
        let make = |communicator: &mut Communicator, plan: &mut Ask<'_>, settings| {
            communicator.subgroup(&lists, plan, settings)
        };
        // SAFETY: By the caller's word.
        unsafe { leave(communicator, planner, context, options, group, make) }
    })
}

/// After a call that returned TOPOD_STATUS_FAILED: makes a group of the ranks that live, in their old order. Every rank that got
/// the failure calls it, once; TOPOD_STATUS_CONNECT where so many are silent that they may be a group of their own, or where this
/// rank is the one at fault. The old group is to be freed like any other.
///
/// # Safety
/// As topod_split.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn topod_shrink(
    communicator: *const CommunicatorHandle,
    planner: Planner,
    context: *mut c_void,
    options: *const OptionsHandle,
    group: *mut *mut CommunicatorHandle,
) -> Status {
    guard(|| {
        let make = |communicator: &mut Communicator, plan: &mut Ask<'_>, settings| {
            communicator.shrink(plan, settings).map(Some)
        };
        // SAFETY: By the caller's word.
        unsafe { leave(communicator, planner, context, options, group, make) }
    })
}

/// Makes the plan for ranks of the group that a group is made of.
type Ask<'a> = dyn FnMut(&[Rank]) -> Plan + 'a;

/// Makes a group along the planner's plan and leaves it, or a null handle where this rank is in none.
///
/// # Safety
/// `communicator` is one, `options` is null or options, `planner` is null or can be called with `context`; `group` is null or has
/// room for a handle.
unsafe fn leave(
    communicator: *const CommunicatorHandle,
    planner: Planner,
    context: *mut c_void,
    options: *const OptionsHandle,
    group: *mut *mut CommunicatorHandle,
    make: impl FnOnce(
        &mut Communicator,
        &mut Ask<'_>,
        Options,
    ) -> Result<Option<Communicator>, ConnectError>,
) -> Result<(), Error> {
    // SAFETY: By the caller's word.
    let parent = unsafe { borrow(communicator, "the communicator") }?;
    // SAFETY: By the caller's word.
    let options = unsafe { options.as_ref() };
    let settings = OptionsHandle::make(options)?;
    let mut failed = None;
    let made = parent.driver.with(|communicator| {
        let mut plan = |ranks: &[Rank]| {
            let (plan, error) = ask(planner, context, ranks, parent.rank);
            failed = error;
            plan
        };
        make(communicator, &mut plan, settings)
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let Some(made) = made? else {
        // SAFETY: By the caller's word.
        unsafe { give(group, ptr::null_mut()) };
        return Ok(());
    };
    let handle = CommunicatorHandle::new(made, options.is_some_and(|o| o.progress_thread))?;
    // SAFETY: By the caller's word.
    unsafe { give_handle(group, handle) }
}
