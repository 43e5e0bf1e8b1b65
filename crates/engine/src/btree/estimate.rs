//! Estimates how many records a tree has, from a few of its paths.

use super::{ROOT, Tree};
use crate::{page::node::Node, types::Result};

/// Sampled paths, spread over the root.
const PATHS: usize = 8;

impl Tree<'_> {
    /// About how many records the tree has, in the time of a few descents. Each path stands for a part of the root's
    /// children, and its nodes for those beside them. (Knuth, "Estimating the efficiency of backtrack programs",
    /// Mathematics of Computation 29, 1975.)
    pub(crate) fn estimate(self) -> Result<u64> {
        let mut sum = 0.0;
        for path in 0..PATHS {
            let mut page = self.pager.read(self.space, ROOT)?;
            self.check_node(&page, ROOT, None)?;
            let mut records = 1.0;
            // The part of the present node's children that the path goes through, in PATHS.
            let mut part = path;
            while !Node::new(&page).is_leaf() {
                let node = Node::new(&page);
                records *= node.count() as f64;
                let slot = node.count() * part / PATHS;
                // Not always the first child of a child.
                part = (part * 5 + 3) % PATHS;
                page = self.read_child(node, slot)?;
            }
            let leaf = Node::new(&page);
            let visible = (0..leaf.count()).filter(|slot| !leaf.leaf_cell(*slot).is_deleted()).count();
            sum += records * visible as f64;
        }
        Ok((sum / PATHS as f64).round() as u64)
    }
}
