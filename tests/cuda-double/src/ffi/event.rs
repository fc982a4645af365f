//! Events.

use std::sync::Arc;

use super::Out;
use crate::code::Code;
use crate::event::{DISABLE_TIMING, Event, INTERPROCESS};

entries! {
    fn cuEventCreate(driver, out: Out<usize>, flags: u32) {
        let context = driver.current()?;
        // Blocking waits, no timing, other processes; the last only without timing.
        let known = flags & !7 == 0;
        if !known || out.is_null() || flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let event = Arc::new(Event::new(driver.handle(), context.handle, flags)?);
        let handle = event.handle;
        driver.events.add(handle, event);
        out.put(handle)
    }

    fn cuEventDestroy_v2(driver, event: usize) {
        driver.events.take(event).map(|_| ())
    }

    fn cuEventRecord(driver, event: usize, stream: usize) {
        let (event, stream) = (driver.events.get(event)?, driver.stream(stream)?);
        // An event of another context is refused; those of other processes belong to where they were opened.
        if event.context != stream.context.handle {
            return Err(Code::INVALID_HANDLE);
        }
        event.record(&stream);
        Ok(())
    }

    fn cuEventQuery(driver, event: usize) {
        let event = driver.events.get(event)?;
        driver.context(event.context)?.check()?;
        if event.is_reached() { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuEventSynchronize(driver, event: usize) {
        let event = driver.events.get(event)?;
        let context = driver.context(event.context)?;
        event.synchronize(|| context.check())?;
        context.check()
    }

    fn cuEventElapsedTime(driver, out: Out<f32>, start: usize, end: usize) {
        let (start, end) = (driver.events.get(start)?, driver.events.get(end)?);
        if start.context != end.context {
            return Err(Code::INVALID_HANDLE);
        }
        out.put(end.since(&start)?)
    }

    fn cuEventElapsedTime_v2(driver, out: Out<f32>, start: usize, end: usize) {
        let (start, end) = (driver.events.get(start)?, driver.events.get(end)?);
        if start.context != end.context {
            return Err(Code::INVALID_HANDLE);
        }
        out.put(end.since(&start)?)
    }
}
