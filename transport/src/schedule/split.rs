//! Exact division of element ranges: no gap, no overlap, for any count.

use std::ops::Range;

use topology::Fraction;

use super::Selected;

/// Part `index` of `parts` equal parts of `range`; borders lie on multiples of `line` from its start.
pub(super) fn part(range: Range<usize>, index: usize, parts: usize, line: usize) -> Range<usize> {
    let border = |i: usize| {
        if i >= parts {
            return range.end;
        }
        // In 128 bits the product of two lengths cannot overflow.
        let at = range.len() as u128 * i as u128 / parts as u128;
        let at = usize::try_from(at).unwrap_or_else(|_| range.len());
        range.start + at / line * line
    };
    border(index)..border(index + 1)
}

/// One range per channel, in proportion to its share among those given; `None` where the shares do not add up.
pub(super) fn by_shares(
    range: Range<usize>,
    channels: &[Selected<'_>],
    line: usize,
) -> Option<Vec<Range<usize>>> {
    let total =
        channels.iter().try_fold(Fraction::ZERO, |sum, c| sum.checked_add(c.channel.share))?;
    if total <= Fraction::ZERO || channels.iter().any(|c| c.channel.share < Fraction::ZERO) {
        return None;
    }
    let length = Fraction::integer(i128::try_from(range.len()).ok()?);
    let mut sum = Fraction::ZERO;
    let mut start = range.start;
    let mut ranges = Vec::with_capacity(channels.len());
    for (i, channel) in channels.iter().enumerate() {
        sum = sum.checked_add(channel.channel.share)?;
        let end = if i + 1 == channels.len() {
            range.end
        } else {
            let at = sum.checked_div(total)?.checked_mul(length)?.floor();
            range.start + usize::try_from(at).ok()? / line * line
        };
        ranges.push(start..end);
        start = end;
    }
    Some(ranges)
}
