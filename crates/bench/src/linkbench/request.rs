//! The request phase: requesters that draw and run operations, first to warm up, then measured.

use std::{
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

use super::{
    Config, RANGE_LIMIT,
    access::{Access, Existing},
    acks::AckLog,
    db::{Db, Footprint},
    history::{History, Tail},
    metrics::{Latencies, Operation},
    operations::{Client, LinkList, link_id},
    payload::{self, Payload},
    progress::Progress,
    random::Random,
    schema,
};

/// Share of the list requests that go on with a list that was longer than one answer.
const HISTORY: f64 = 0.003;

/// What the request phase found.
#[derive(Clone, Debug)]
pub(crate) struct Requested {
    pub latencies: Latencies,
    /// From the end of the warm-up until the last requester is done.
    pub seconds: f64,
    /// Processor time of this process and of servers over the measured part, settling at its end
    /// included.
    pub cpu_seconds: f64,
    /// Bytes that reached the device over the same.
    pub device_bytes_written: u64,
    /// After settling.
    pub footprint: Footprint,
    /// Transactions that lost and were run again.
    pub retries: u64,
}

const WARMING: u8 = 0;
const MEASURED: u8 = 1;
const STOPPED: u8 = 2;

/// Runs the request phase. Requests that begin while it is measured count; the last ones are
/// waited for. The database is settled at the end, and traffic and processor time include that, so
/// that work which was put off is not work saved; what the warm-up put off is included as well.
pub(crate) fn request<D: Db>(
    db: &D,
    config: &Config,
    access: &Access,
    acks: Option<&AckLog>,
    next_node_id: &AtomicU64,
) -> Result<Requested> {
    let (phase, requests) = (AtomicU8::new(WARMING), AtomicU64::new(0));
    let mut seen = (Instant::now(), 0);
    let progress = Progress::new("requests", config.quiet, || {
        let now = (Instant::now(), requests.load(Relaxed));
        let per_second = (now.1 - seen.1) as f64 / (now.0 - seen.0).as_secs_f64();
        seen = now;
        let warming = if phase.load(Relaxed) == WARMING { " (warming up)" } else { "" };
        format!("{} done, {per_second:.0} per second{warming}", now.1)
    });
    let work = |number: u64| {
        let requester = Requester::new(number, Client::new(db, acks, next_node_id), config, access);
        let result = requester.run(&phase, &requests);
        if result.is_err() {
            phase.store(STOPPED, Relaxed);
        }
        result
    };
    progress.during(|| {
        thread::scope(|scope| {
            let requesters: Vec<_> =
                (0..u64::from(config.requesters)).map(|number| scope.spawn(move || work(number))).collect();
            wait_unless_stopped(&phase, config.warmup);
            let before = db.footprint()?;
            let (start, cpu_start) = (Instant::now(), cpu_seconds() + db.server_cpu_seconds());
            let warm = phase.compare_exchange(WARMING, MEASURED, Relaxed, Relaxed).is_ok();
            if warm {
                wait_unless_stopped(&phase, config.seconds);
            }
            phase.store(STOPPED, Relaxed);
            let (mut latencies, mut retries) = (Latencies::new(), 0);
            for requester in requesters {
                let (its_latencies, its_retries) = requester.join().expect("a requester panicked")?;
                latencies.merge(&its_latencies);
                retries += its_retries;
            }
            let seconds = start.elapsed().as_secs_f64();
            db.settle()?;
            let footprint = db.footprint()?;
            Ok(Requested {
                latencies,
                seconds,
                cpu_seconds: cpu_seconds() + db.server_cpu_seconds() - cpu_start,
                device_bytes_written: footprint.device_written_bytes - before.device_written_bytes,
                footprint,
                retries,
            })
        })
    })
}

fn wait_unless_stopped(phase: &AtomicU8, time: Duration) {
    let start = Instant::now();
    while let Some(left) = time.checked_sub(start.elapsed()) {
        if phase.load(Relaxed) == STOPPED {
            return;
        }
        thread::sleep(left.min(Duration::from_millis(20)));
    }
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

struct Requester<'a, D: Db> {
    client: Client<'a, D>,
    access: &'a Access,
    random: Random,
    link_payload: [Payload; 2],
    node_payload: [Payload; 2],
    data: Vec<u8>,
    id2s: Vec<u64>,
    list: LinkList,
    history: History,
}

impl<'a, D: Db> Requester<'a, D> {
    fn new(number: u64, client: Client<'a, D>, config: &Config, access: &'a Access) -> Self {
        let mut random = Random::new(config.seed, !number);
        // As in LinkBench every requester has motifs of its own, others for adds than for updates.
        let link_payload = std::array::from_fn(|_| Payload::new(payload::LINK, &mut random));
        let node_payload = std::array::from_fn(|_| Payload::new(payload::NODE, &mut random));
        Requester {
            client,
            access,
            random,
            link_payload,
            node_payload,
            data: Vec::new(),
            id2s: Vec::new(),
            list: LinkList::default(),
            history: History::default(),
        }
    }

    fn run(mut self, phase: &AtomicU8, requests: &AtomicU64) -> Result<(Latencies, u64)> {
        let mut latencies = Latencies::new();
        let mut retries_warming = 0;
        loop {
            let phase = phase.load(Relaxed);
            if phase == STOPPED {
                return Ok((latencies, self.client.retries() - retries_warming));
            }
            let operation = Operation::choose(&mut self.random);
            let nanos = self.run_one(operation)?;
            requests.fetch_add(1, Relaxed);
            if phase == MEASURED {
                latencies.record(operation, nanos);
            } else {
                retries_warming = self.client.retries();
            }
        }
    }

    /// Draws what the operation needs, then runs it; how long the database took, in nanoseconds,
    /// retries included.
    fn run_one(&mut self, operation: Operation) -> Result<u64> {
        let (access, random) = (self.access, &mut self.random);
        self.data.clear();
        let start;
        match operation {
            Operation::AddLink | Operation::UpdateLink => {
                let update = operation == Operation::UpdateLink;
                let existing = if update { Existing::UPDATE } else { Existing::ADD };
                let id1 = access.link_write_id(random);
                let link_type = access.link_type(random);
                let id = link_id(id1, link_type, access.id2(random, id1, link_type, existing));
                self.link_payload[usize::from(update)].append(random, &mut self.data);
                let time = now_ms();
                start = Instant::now();
                self.client.add_link(id, time, &self.data)?;
            }
            Operation::DeleteLink => {
                let id1 = access.link_write_id(random);
                let link_type = access.link_type(random);
                let id = link_id(id1, link_type, access.id2(random, id1, link_type, Existing::DELETE));
                let time = now_ms();
                start = Instant::now();
                self.client.delete_link(id, time)?;
            }
            Operation::CountLink => {
                let id1 = access.link_read_id(random);
                let link_type = schema::link_type(access.link_type(random));
                start = Instant::now();
                self.client.count_links(id1, link_type)?;
            }
            Operation::GetLink => {
                let id1 = access.link_read_id(random);
                let link_type = access.link_type(random);
                access.multiget(random, id1, link_type, &mut self.id2s);
                start = Instant::now();
                self.client.get_links(id1, schema::link_type(link_type), &self.id2s)?;
            }
            Operation::GetLinkList => {
                let older = if random.unit() < HISTORY { self.history.choose(random) } else { None };
                let fresh = older
                    .is_none()
                    .then(|| (access.link_read_id(random), schema::link_type(access.link_type(random))));
                start = Instant::now();
                self.get_list(older, fresh)?;
            }
            Operation::GetNode => {
                let id = access.node_read_id(random);
                start = Instant::now();
                self.client.get_node(id)?;
            }
            Operation::AddNode => {
                self.node_payload[0].append(random, &mut self.data);
                let time = (now_ms() / 1000) as u32;
                start = Instant::now();
                self.client.add_node(time, &self.data)?;
            }
            Operation::UpdateNode => {
                let id = access.node_update_id(random);
                self.node_payload[1].append(random, &mut self.data);
                let time = (now_ms() / 1000) as u32;
                start = Instant::now();
                self.client.update_node(id, time, &self.data)?;
            }
            Operation::DeleteNode => {
                let id = access.node_delete_id(random);
                start = Instant::now();
                self.client.delete_node(id)?;
            }
        }
        Ok(start.elapsed().as_nanos() as u64)
    }

    /// Fetches the newest part of a list, or an older part of one that was cut before.
    fn get_list(&mut self, older: Option<Tail>, fresh: Option<(u64, u64)>) -> Result<()> {
        if let Some(tail) = older {
            // The last link seen is at that very time: skip it.
            self.client.get_link_list(tail.id1, tail.link_type, tail.time, 1, &mut self.list)?;
        } else if let Some((id1, link_type)) = fresh {
            self.client.get_link_list(id1, link_type, u64::MAX, 0, &mut self.list)?;
        }
        let cut = self.list.len() == RANGE_LIMIT;
        let end = self.list.last().filter(|_| cut).map(|(id, time)| Tail::of(id, time));
        match (older, end) {
            (Some(tail), end) => self.history.advance(tail, end),
            (None, Some(end)) => self.history.add(end, &mut self.random),
            (None, None) => {}
        }
        Ok(())
    }
}
