//! The requesters of the request phase: they draw and run operations.

use std::{sync::atomic::AtomicU64, time::Instant};

use anyhow::Result;

use super::{
    Config, RANGE_LIMIT,
    access::{Access, Existing},
    acks::AckLog,
    db::Db,
    history::{History, Tail},
    mix::{Mix, Operation},
    operations::{Client, LinkList, link_id},
    payload::{self, Payload},
    schema,
};
use crate::{
    now_ms,
    random::Random,
    requesters::{self, Requested, Requester},
};

/// Share of the list requests that go on with a list that was longer than one answer.
const HISTORY: f64 = 0.003;

/// Runs the request phase.
pub(crate) fn request<D: Db>(
    db: &D,
    config: &Config,
    access: &Access,
    acks: Option<&AckLog>,
    next_node_id: &AtomicU64,
) -> Result<Requested> {
    requesters::run(db, config.plan, Operation::COUNT, |number| {
        LinkRequester::new(number, Client::new(db, acks, next_node_id), config, access)
    })
}

struct LinkRequester<'a, D: Db> {
    client: Client<'a, D>,
    access: &'a Access,
    mix: &'a Mix,
    random: Random,
    link_payload: [Payload; 2],
    node_payload: [Payload; 2],
    data: Vec<u8>,
    id2s: Vec<u64>,
    list: LinkList,
    history: History,
}

impl<D: Db> Requester for LinkRequester<'_, D> {
    fn request(&mut self) -> Result<(usize, u64)> {
        let operation = self.mix.choose(&mut self.random);
        Ok((operation as usize, self.run_one(operation)?))
    }

    fn retries(&self) -> u64 {
        self.client.retries()
    }
}

impl<'a, D: Db> LinkRequester<'a, D> {
    fn new(number: u64, client: Client<'a, D>, config: &'a Config, access: &'a Access) -> Self {
        let mut random = Random::new(config.plan.seed, !number);
        // As in LinkBench every requester has motifs of its own, others for adds than for updates.
        let link_payload = std::array::from_fn(|_| Payload::new(payload::LINK, &mut random));
        let node_payload = std::array::from_fn(|_| Payload::new(payload::NODE, &mut random));
        LinkRequester {
            client,
            access,
            mix: &config.mix,
            random,
            link_payload,
            node_payload,
            data: Vec::new(),
            id2s: Vec::new(),
            list: LinkList::default(),
            history: History::default(),
        }
    }

    /// Draws the operation's arguments, then runs it; returns how long the database took, in nanoseconds, retries
    /// included.
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
