//! Adya's graph of direct dependencies between transactions, and cycles in it.

use std::collections::BTreeSet;

/// Why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Edge {
    /// The second one's version of a record succeeds the first one's.
    Write,
    /// The second one read the first one's version.
    Read,
    /// The second one's version succeeds the version that the first one read.
    Anti,
}

/// Transactions by number.
pub(crate) struct Graph {
    edges: Vec<BTreeSet<(usize, Edge)>>,
}

impl Graph {
    pub(crate) fn new(txns: usize) -> Graph {
        Graph { edges: vec![BTreeSet::new(); txns] }
    }

    /// An edge from a transaction to itself is ignored.
    pub(crate) fn add(&mut self, from: usize, to: usize, edge: Edge) {
        if from != to {
            self.edges[from].insert((to, edge));
        }
    }

    /// A shortest way from one transaction to another over edges that `takes`, both included.
    pub(crate) fn way(&self, from: usize, to: usize, takes: impl Fn(Edge) -> bool) -> Option<Vec<usize>> {
        let mut came_from = vec![None; self.edges.len()];
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            if at == to {
                let mut way = vec![at];
                while *way.last().expect("not empty") != from {
                    way.push(came_from[*way.last().expect("not empty")].expect("reached"));
                }
                way.reverse();
                return Some(way);
            }
            for (next, _) in self.edges[at].iter().filter(|(_, edge)| takes(*edge)) {
                if came_from[*next].is_none() && *next != from {
                    came_from[*next] = Some(at);
                    queue.push_back(*next);
                }
            }
        }
        None
    }

    /// Sets of transactions, each of which reaches all others of its set over edges that `takes` (Tarjan 1972).
    pub(crate) fn circles(&self, takes: impl Fn(Edge) -> bool) -> Vec<Vec<usize>> {
        let mut search = Tarjan {
            graph: self,
            takes,
            index: vec![None; self.edges.len()],
            low: vec![0; self.edges.len()],
            stack: Vec::new(),
            is_on_stack: vec![false; self.edges.len()],
            next: 0,
            found: Vec::new(),
        };
        for txn in 0..self.edges.len() {
            if search.index[txn].is_none() {
                search.visit(txn);
            }
        }
        search.found
    }

    /// Anti-dependencies of a transaction.
    pub(crate) fn antis(&self, txn: usize) -> impl Iterator<Item = usize> {
        self.edges[txn].iter().filter(|(_, edge)| *edge == Edge::Anti).map(|(to, _)| *to)
    }
}

struct Tarjan<'a, F> {
    graph: &'a Graph,
    takes: F,
    index: Vec<Option<usize>>,
    low: Vec<usize>,
    stack: Vec<usize>,
    is_on_stack: Vec<bool>,
    next: usize,
    found: Vec<Vec<usize>>,
}

impl<F: Fn(Edge) -> bool> Tarjan<'_, F> {
    fn enter(&mut self, txn: usize) {
        self.index[txn] = Some(self.next);
        self.low[txn] = self.next;
        self.next += 1;
        self.stack.push(txn);
        self.is_on_stack[txn] = true;
    }

    /// Goes down without recursion: histories may be longer than a thread's stack is deep.
    fn visit(&mut self, root: usize) {
        let graph = self.graph;
        let mut path = vec![(root, graph.edges[root].iter())];
        self.enter(root);
        while let Some((txn, edges)) = path.last_mut() {
            let txn = *txn;
            if let Some((next, edge)) = edges.next() {
                if !(self.takes)(*edge) {
                    continue;
                }
                match self.index[*next] {
                    None => {
                        self.enter(*next);
                        path.push((*next, graph.edges[*next].iter()));
                    }
                    Some(index) if self.is_on_stack[*next] => self.low[txn] = self.low[txn].min(index),
                    Some(_) => {}
                }
                continue;
            }
            path.pop();
            if let Some((parent, _)) = path.last() {
                self.low[*parent] = self.low[*parent].min(self.low[txn]);
            }
            if Some(self.low[txn]) == self.index[txn] {
                self.pop_circle(txn);
            }
        }
    }

    fn pop_circle(&mut self, root: usize) {
        let at = self.stack.iter().rposition(|txn| *txn == root).expect("on the stack");
        let circle = self.stack.split_off(at);
        circle.iter().for_each(|txn| self.is_on_stack[*txn] = false);
        if circle.len() > 1 {
            self.found.push(circle);
        }
    }
}

#[test]
fn circles_and_ways_are_found() {
    let mut graph = Graph::new(6);
    for (from, to, edge) in [(0, 1, Edge::Write), (1, 2, Edge::Read), (2, 0, Edge::Write), (2, 3, Edge::Read)]
    {
        graph.add(from, to, edge);
    }
    graph.add(3, 4, Edge::Anti);
    graph.add(4, 3, Edge::Write);
    let sets = |takes: fn(Edge) -> bool| {
        let mut circles = graph.circles(takes);
        circles.iter_mut().for_each(|circle| circle.sort());
        circles.sort();
        circles
    };
    assert_eq!(sets(|edge| edge == Edge::Write), Vec::<Vec<usize>>::new());
    assert_eq!(sets(|edge| edge != Edge::Anti), [[0, 1, 2]]);
    assert_eq!(sets(|_| true), [vec![0, 1, 2], vec![3, 4]]);
    assert_eq!(graph.way(0, 3, |edge| edge != Edge::Anti), Some(vec![0, 1, 2, 3]));
    assert_eq!(graph.way(3, 0, |_| true), None);
    assert_eq!(graph.antis(3).collect::<Vec<_>>(), [4]);
}
