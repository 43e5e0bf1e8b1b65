//! The load phase: nodes and links with their index entries and counts, by many threads.
//!
//! Work is cut into jobs that depend on nothing but the seed, so plain and compressed tables get
//! the very same rows whichever thread takes which job. So do the motifs that their payloads share:
//! they are those of LinkBench's loaders, not of the threads here. A node with very many links (LinkBench's
//! hottest has a million) is spread over several jobs. Every transaction keeps counts equal to
//! visible links, so a load that is cut short leaves a consistent graph.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

use anyhow::Result;

use super::{
    Config, LINK_TYPES,
    acks::{Ack, AckLog},
    db::{Db, Table, Txn, insert},
    degree::Degrees,
    operations::{Client, link_id},
    payload::{self, Payload},
    schema::{LinkId, LinkRow, NODE_TYPE, NodeRow, VISIBLE, node_key},
};
use crate::{progress::Progress, random::Random};

/// Rows per transaction, as LinkBench loads MySQL.
const BATCH_ROWS: usize = 1024;
/// Ids per job.
const CHUNK_IDS: u64 = 1024;
/// A list longer than this is cut into jobs of its own.
const SEGMENT_LINKS: u64 = 16 * BATCH_ROWS as u64;
/// Loaded links are up to this much older than the load, in milliseconds (50 days).
const AGE_MAX_MS: u64 = 1 << 32;
/// LinkBench has one loader of nodes and, by its configuration, ten of links. Each has motifs of its own.
const LINK_LOADERS: usize = 10;
/// Ids whose links one of these loads at a time.
const LINK_LOADER_IDS: u64 = 2048;

/// Rows that were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loaded {
    pub nodes: u64,
    pub links: u64,
}

#[derive(Clone, Copy, Debug)]
enum Job {
    /// Nodes `first .. end` with their lists, but for the long ones.
    Chunk { first: u64, end: u64 },
    /// Links `from .. end` of one long list.
    Segment { id1: u64, link_type: usize, from: u64, end: u64 },
}

/// Long lists first: they take longest.
fn jobs(ids: u64, degrees: &Degrees) -> Vec<Job> {
    let mut jobs = Vec::new();
    for id1 in 1..=ids {
        for link_type in 0..LINK_TYPES {
            let links = degrees.of(id1, link_type);
            if links > SEGMENT_LINKS {
                jobs.extend((0..links).step_by(SEGMENT_LINKS as usize).map(|from| Job::Segment {
                    id1,
                    link_type,
                    from,
                    end: links.min(from + SEGMENT_LINKS),
                }));
            }
        }
    }
    let chunks = (1..=ids).step_by(CHUNK_IDS as usize);
    jobs.extend(chunks.map(|first| Job::Chunk { first, end: (first + CHUNK_IDS).min(ids + 1) }));
    jobs
}

/// Loads all nodes and links. `next_node_id` is set to the id after the last node.
pub(crate) fn load<D: Db>(
    db: &D,
    config: &Config,
    degrees: &Degrees,
    acks: Option<&AckLog>,
    next_node_id: &AtomicU64,
) -> Result<Loaded> {
    let jobs = jobs(config.ids, degrees);
    let (taken, nodes, links) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let done = Progress::new("load", config.plan.quiet, || {
        let (nodes, links) = (nodes.load(Relaxed), links.load(Relaxed));
        format!("{nodes} of {} nodes, {links} links", config.ids)
    });
    let motifs = Motifs::new(config.plan.seed);
    let work = || {
        let client = Client::new(db, acks, next_node_id);
        let mut loader = Loader { client, config, degrees, motifs: &motifs };
        while let Some(&job) = jobs.get(taken.fetch_add(1, Relaxed) as usize) {
            let result = loader.run(job, |rows| {
                nodes.fetch_add(rows.nodes, Relaxed);
                links.fetch_add(rows.links, Relaxed);
            });
            if result.is_err() {
                // No thread starts another job.
                taken.store(jobs.len() as u64, Relaxed);
                return result;
            }
        }
        Ok(())
    };
    done.during(|| {
        thread::scope(|scope| {
            let loaders: Vec<_> = (0..config.plan.loaders).map(|_| scope.spawn(work)).collect();
            loaders.into_iter().try_for_each(|l| l.join().expect("a loader panicked"))
        })
    })?;
    next_node_id.store(config.ids + 1, Relaxed);
    Ok(Loaded { nodes: nodes.into_inner(), links: links.into_inner() })
}

/// The payloads of LinkBench's loaders.
struct Motifs {
    nodes: Payload,
    links: [Payload; LINK_LOADERS],
    seed: u64,
}

impl Motifs {
    fn new(seed: u64) -> Motifs {
        let mut random = Random::new(seed, 0xB0);
        let nodes = Payload::new(payload::NODE, &mut random);
        Motifs { nodes, links: std::array::from_fn(|_| Payload::new(payload::LINK, &mut random)), seed }
    }

    /// Those of the loader that happens to load the links of `id1`.
    fn of_links(&self, id1: u64) -> &Payload {
        let taken = (id1 - 1) / LINK_LOADER_IDS;
        &self.links[Random::new(self.seed ^ 0xB1, taken).below(LINK_LOADERS as u64) as usize]
    }
}

struct Loader<'a, D: Db> {
    client: Client<'a, D>,
    config: &'a Config,
    degrees: &'a Degrees,
    motifs: &'a Motifs,
}

/// Links of one list that are loaded in one transaction: `links[range]`, then the count.
struct Run {
    first: LinkId,
    links: std::ops::Range<usize>,
}

#[derive(Default)]
struct Batch {
    runs: Vec<Run>,
    /// Time and payload of each link.
    links: Vec<(u64, Vec<u8>)>,
}

impl<D: Db> Loader<'_, D> {
    fn run(&mut self, job: Job, count: impl Fn(Loaded)) -> Result<()> {
        match job {
            Job::Chunk { first, end } => {
                let mut random = Random::new(self.config.plan.seed, first << 8);
                self.nodes(&mut random, first, end)?;
                count(Loaded { nodes: end - first, links: 0 });
                let mut batch = Batch::default();
                // LinkBench loads both types of a node together.
                for id1 in first..end {
                    for link_type in 0..LINK_TYPES {
                        let links = self.degrees.of(id1, link_type);
                        if links <= SEGMENT_LINKS {
                            let list = link_id(id1, link_type, id1);
                            self.links(&mut random, &mut batch, list, links, &count)?;
                        }
                    }
                }
                self.flush(&mut batch, &count)
            }
            Job::Segment { id1, link_type, from, end } => {
                let purpose = (id1 << 8) + 1 + link_type as u64;
                let mut random = Random::new(self.config.plan.seed ^ from.rotate_right(16), purpose);
                let mut batch = Batch::default();
                let first = link_id(id1, link_type, id1 + from);
                self.links(&mut random, &mut batch, first, end - from, &count)?;
                self.flush(&mut batch, &count)
            }
        }
    }

    fn nodes(&mut self, random: &mut Random, first: u64, end: u64) -> Result<()> {
        let payload = &self.motifs.nodes;
        let time = (self.config.plan.epoch_ms / 1000) as u32;
        for start in (first..end).step_by(BATCH_ROWS) {
            let stop = end.min(start + BATCH_ROWS as u64);
            let rows: Vec<Vec<u8>> = (start..stop)
                .map(|_| {
                    let mut data = Vec::new();
                    payload.append(random, &mut data);
                    data
                })
                .collect();
            self.client.transact(|txn, value, acks| {
                for (id, data) in (start..stop).zip(&rows) {
                    NodeRow { node_type: NODE_TYPE, version: 1, time, data }.value(value);
                    insert(txn, Table::Node, &node_key(id), value)?;
                }
                acks.push(Ack::NodesLoaded { id: start, n: stop - start });
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Adds `n` links from `first` on to the batch and loads it whenever it is full.
    fn links(
        &mut self,
        random: &mut Random,
        batch: &mut Batch,
        first: LinkId,
        n: u64,
        count: &impl Fn(Loaded),
    ) -> Result<()> {
        let payload = self.motifs.of_links(first.id1);
        let mut added = 0;
        while added < n {
            let start = batch.links.len();
            let fit = n.min(added + (BATCH_ROWS - start) as u64);
            for _ in added..fit {
                let mut data = Vec::new();
                payload.append(random, &mut data);
                let age = 1 + random.below(AGE_MAX_MS);
                batch.links.push((self.config.plan.epoch_ms.saturating_sub(age), data));
            }
            let first = LinkId { id2: first.id2 + added, ..first };
            batch.runs.push(Run { first, links: start..batch.links.len() });
            added = fit;
            if batch.links.len() == BATCH_ROWS {
                self.flush(batch, count)?;
            }
        }
        Ok(())
    }

    fn flush(&mut self, batch: &mut Batch, count: &impl Fn(Loaded)) -> Result<()> {
        if batch.links.is_empty() {
            return Ok(());
        }
        self.client.transact(|txn, value, acks| {
            for Run { first, links } in &batch.runs {
                for (id2, (time, data)) in (first.id2..).zip(&batch.links[links.clone()]) {
                    let id = LinkId { id2, ..*first };
                    let row = LinkRow { visibility: VISIBLE, time: *time, version: 0, data };
                    row.value(value);
                    insert(txn, Table::Link, &id.key(), value)?;
                    row.index_value(value);
                    insert(txn, Table::LinkByTime, &row.index_key(&id), value)?;
                }
                acks.push(Ack::LinksLoaded { first: *first, n: links.len() as u64 });
            }
            // Last, because loaders that share a long list wait for each other here.
            for Run { first, links } in &batch.runs {
                let newest = batch.links[links.clone()].iter().map(|&(time, _)| time).max();
                let by = links.len() as i64;
                txn.change_count((first.id1, first.link_type), by, newest.unwrap_or_default())?;
            }
            Ok(())
        })?;
        count(Loaded { nodes: 0, links: batch.links.len() as u64 });
        batch.links.clear();
        batch.runs.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linkbench::degree::Distribution;

    #[test]
    fn motifs_are_shared_as_by_the_loaders_of_linkbench() {
        let motifs = Motifs::new(1);
        let of = |id1| std::ptr::from_ref(motifs.of_links(id1));
        assert_eq!(of(1), of(2048));
        let used: std::collections::BTreeSet<_> = (0..1000).map(|chunk| of(1 + chunk * 2048)).collect();
        assert_eq!(used.len(), 10);
    }

    #[test]
    fn jobs_cover_every_link_once() {
        let degrees = Degrees::new(5000, Distribution::Builtin, 1);
        let mut links = 0;
        let mut ids = 0;
        for job in jobs(5000, &degrees) {
            match job {
                Job::Segment { from, end, .. } => {
                    assert!(from < end && end - from <= SEGMENT_LINKS);
                    links += end - from;
                }
                Job::Chunk { first, end } => {
                    ids += end - first;
                    links += (first..end)
                        .flat_map(|id| (0..LINK_TYPES).map(move |t| (id, t)))
                        .map(|(id, t)| degrees.of(id, t))
                        .filter(|&n| n <= SEGMENT_LINKS)
                        .sum::<u64>();
                }
            }
        }
        let all: u64 = (1..=5000).map(|id| degrees.of(id, 0) + degrees.of(id, 1)).sum();
        assert_eq!((ids, links), (5000, all));
    }
}
