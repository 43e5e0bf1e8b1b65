//! Checks a tree's invariants.

use super::{ROOT, Tree};
use crate::{
    alloc::{Allocator, PageSet},
    overflow::{self, UndoChains},
    page::{node::Node, overflow::Reference},
    space::{Space, corrupt},
    types::{PageNo, Result, TableId, TxnId},
};

/// Counts of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeReport {
    pub(crate) records: u64,
    pub(crate) leaves: u64,
    pub(crate) inner_nodes: u64,
    pub(crate) free_pages: u64,
    pub(crate) overflow_pages: u64,
    pub(crate) height: u64,
}

impl Tree<'_> {
    /// Checks that every node lies between its fences, that every page of the file is in the tree, in a
    /// chain of the tree's or of an undo record's, or free, once, that all pages read well, and that no record is of
    /// the transaction `next` or a later one. The tree must not change meanwhile.
    pub(crate) fn check(self, undo: &UndoChains, next: TxnId) -> Result<TreeReport> {
        let mut report = TreeReport::default();
        let (used, free) = Allocator::latch(self.pager, self.space)?.survey()?;
        let mut seen = Seen { pages: PageSet::default(), used, next };
        for page in free.iter().chain(&[PageNo(0)]) {
            seen.mark(self.space, *page)?;
        }
        report.free_pages = free.len() as u64;
        let root = self.pager.read(self.space, ROOT)?;
        self.check_node(&root, ROOT, None)?;
        report.height = u64::from(Node::new(&root).level()) + 1;
        drop(root);
        self.check_subtree(ROOT, &[], None, &mut seen, &mut report)?;
        let of_table = |(table, chain): &(TableId, Reference)| (*table == self.space.id()).then_some(*chain);
        for chain in undo.replaced.iter().filter_map(of_table) {
            self.check_chain(chain, &mut seen, &mut report)?;
        }
        for chain in undo.announced.iter().filter_map(of_table) {
            // The leaf or a later change may own it by now.
            if !seen.pages.contains(chain.first) {
                self.check_chain(chain, &mut seen, &mut report)?;
            }
        }
        if let Some(lost) = seen.pages.first_missing(used) {
            return Err(corrupt(self.space, lost, "neither in use nor free"));
        }
        Ok(report)
    }

    fn check_subtree(
        self,
        page: PageNo,
        low: &[u8],
        high: Option<&[u8]>,
        seen: &mut Seen,
        report: &mut TreeReport,
    ) -> Result<()> {
        seen.mark(self.space, page)?;
        let guard = self.pager.read(self.space, page)?;
        let node = Node::new(&guard);
        for slot in 0..node.count() {
            let key = node.key(slot);
            let first_of_inner = slot == 0 && !node.is_leaf();
            if (key < low && !first_of_inner) || high.is_some_and(|high| key >= high) {
                return Err(corrupt(self.space, page, "key outside of its node's fences"));
            }
        }
        if node.is_leaf() {
            report.leaves += 1;
            for slot in 0..node.count() {
                let cell = node.leaf_cell(slot);
                report.records += u64::from(!cell.is_deleted());
                if cell.txn >= seen.next {
                    return Err(corrupt(self.space, page, "a record of a transaction that never was"));
                }
                if let Some(chain) = cell.reference() {
                    self.check_chain(chain, seen, report)?;
                }
            }
            return Ok(());
        }
        report.inner_nodes += 1;
        for slot in 0..node.count() {
            let low = if slot == 0 { low } else { node.key(slot) };
            let high = if slot + 1 < node.count() { Some(node.key(slot + 1)) } else { high };
            let child = self.read_child(node, slot)?.id().page;
            self.check_subtree(child, low, high, seen, report)?;
        }
        Ok(())
    }
}

impl Tree<'_> {
    fn check_chain(self, chain: Reference, seen: &mut Seen, report: &mut TreeReport) -> Result<()> {
        overflow::check(self.pager, self.space, chain, |page| {
            report.overflow_pages += 1;
            seen.mark(self.space, page)
        })
    }
}

/// The pages that were met, of those that the file has; and the limits of what is in them.
struct Seen {
    pages: PageSet,
    used: u64,
    /// The first transaction that did not write.
    next: TxnId,
}

impl Seen {
    fn mark(&mut self, space: &Space, page: PageNo) -> Result<()> {
        if page.0 >= self.used {
            return Err(corrupt(space, page, "beyond the file's pages"));
        }
        if self.pages.insert(page) { Ok(()) } else { Err(corrupt(space, page, "reached twice")) }
    }
}
