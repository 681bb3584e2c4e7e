//! Time and resources of this process, in the units of the event format: nanoseconds and bytes.

use std::{fs, io, mem};

/// `CLOCK_MONOTONIC` in nanoseconds.
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// `CLOCK_TAI` in nanoseconds.
pub fn tai_ns() -> u64 {
    read(libc::CLOCK_TAI)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec; both clocks exist on every Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time of the whole process, all threads, ended ones too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    pub user_ns: u64,
    pub system_ns: u64,
}

impl CpuTime {
    pub fn now() -> CpuTime {
        // SAFETY: rusage is plain data, and RUSAGE_SELF with a valid pointer cannot fail.
        let usage = unsafe {
            let mut usage: libc::rusage = mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
        CpuTime {
            user_ns: ns(usage.ru_utime),
            system_ns: ns(usage.ru_stime),
        }
    }

    /// CPU time spent since `earlier`.
    pub fn since(self, earlier: CpuTime) -> CpuTime {
        CpuTime {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
        }
    }
}

/// Time the living threads of this process were ready to run but waited for a CPU: the second field of
/// `/proc/self/task/*/schedstat`. `None` on a kernel without scheduler statistics.
pub fn run_delay_ns() -> Option<u64> {
    let mut sum = 0;
    for task in fs::read_dir("/proc/self/task").ok()? {
        // A thread may end between the listing and the reading.
        let text = match fs::read_to_string(task.ok()?.path().join("schedstat")) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && sum > 0 => continue,
            Err(_) => return None,
        };
        sum += parse_run_delay(&text)?;
    }
    Some(sum)
}

fn parse_run_delay(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Largest resident set of this program. `VmHWM` and not `getrusage`, whose value survives `exec` and would tell the size
/// of the process that started this one.
pub fn max_rss_bytes() -> Option<u64> {
    parse_vm_hwm(&fs::read_to_string("/proc/self/status").ok()?)
}

fn parse_vm_hwm(status: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_never_goes_back() {
        let first = now_ns();
        assert!(now_ns() >= first);
        let first = tai_ns();
        assert!(tai_ns() >= first);
    }

    #[test]
    fn cpu_time_is_a_difference() {
        let earlier = CpuTime {
            user_ns: 5,
            system_ns: 7,
        };
        let later = CpuTime {
            user_ns: 11,
            system_ns: 9,
        };
        let spent = later.since(earlier);
        assert_eq!((spent.user_ns, spent.system_ns), (6, 2));
    }

    #[test]
    fn run_delay_is_the_second_field() {
        assert_eq!(parse_run_delay("123 456 7\n"), Some(456));
        assert_eq!(parse_run_delay("123\n"), None);
    }

    #[test]
    fn resident_set_is_read_in_kib() {
        let status = "Name:\tx\nVmHWM:\t     128 kB\nVmRSS:\t 64 kB\n";
        assert_eq!(parse_vm_hwm(status), Some(131_072));
        assert_eq!(parse_vm_hwm("Name:\tx\n"), None);
    }
}
