//! What the threads that compile kernels are to do.
//!
//! Orders begin as they came, on whichever thread is free, and end in any order. One that cannot begin yet holds up no other:
//!
//! | order | begins when |
//! |---|---|
//! | of a kernel that another order is of | that one has ended, which came first: names are used again |
//! | to compile a kernel alone | nothing is under way, nor waits before it; nothing behind it begins before it has ended |

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

use crate::kernel::name::KernelName;

/// Bytes of kernels that wait before the control thread has to: what a guest asks for and gives up again is kept by the daemon no more.
const MOST_WAITING: usize = 4 << 20;
/// Bytes that each of them takes besides.
const ORDER_BYTES: usize = 256;

/// CREATE_KERNEL.
#[derive(Debug, PartialEq, Eq)]
pub struct Create {
    /// Its name.
    pub kernel: KernelName,
    /// `LANGUAGE_*` of the protocol.
    pub language: u32,
    /// Entry point, where there are several.
    pub entry: Option<String>,
    /// Text or words.
    pub bytes: Vec<u8>,
    /// Nothing is compiled beside it.
    pub alone: bool,
}

/// What one thread is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Order {
    /// CREATE_KERNEL.
    Create(Create),
    /// DESTROY_KERNEL.
    Destroy {
        /// Its name.
        kernel: KernelName,
    },
    /// The process runs from here on: what the driver compiles is kept for the next.
    Begin,
}

impl Order {
    fn bytes(&self) -> usize {
        match self {
            Self::Create(create) => ORDER_BYTES + create.bytes.len(),
            Self::Destroy { .. } | Self::Begin => ORDER_BYTES,
        }
    }

    /// The kernel that it is of.
    pub fn kernel(&self) -> Option<KernelName> {
        match self {
            Self::Create(create) => Some(create.kernel),
            Self::Destroy { kernel } => Some(*kernel),
            Self::Begin => None,
        }
    }

    fn is_alone(&self) -> bool {
        matches!(self, Self::Create(Create { alone: true, .. }))
    }
}

#[derive(Debug, Default)]
struct Waiting {
    orders: VecDeque<Order>,
    bytes: usize,
    /// Kernels of orders that have begun and not ended; as many as there are threads.
    under_way: Vec<KernelName>,
    /// The one that is under way is compiled alone.
    is_alone: bool,
}

impl Waiting {
    /// The first that may begin, which is under way from here on.
    fn begin(&mut self) -> Option<Order> {
        if self.is_alone {
            return None;
        }
        // Of one that waits for a kernel, all behind it wait for the same one.
        let waits = |order: &Order| order.kernel().is_some_and(|kernel| self.under_way.contains(&kernel));
        let first = self.orders.iter().position(|order| order.is_alone() || !waits(order))?;
        if self.orders.get(first)?.is_alone() && !self.under_way.is_empty() {
            return None;
        }
        let order = self.orders.remove(first)?;
        self.bytes -= order.bytes();
        self.is_alone = order.is_alone();
        self.under_way.extend(order.kernel());
        Some(order)
    }
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic under the lock cannot leave it half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where orders go.
#[derive(Debug, Clone, Default)]
pub struct Orders {
    shared: Arc<Shared>,
}

impl Orders {
    /// One more, behind those before it. Waits where too much waits already.
    pub fn give(&self, order: Order) {
        let bytes = order.bytes();
        let is_full = |waiting: &mut Waiting| waiting.bytes > 0 && waiting.bytes + bytes > MOST_WAITING;
        let waiting = self.shared.lock();
        let mut waiting =
            self.shared.changed.wait_while(waiting, is_full).unwrap_or_else(PoisonError::into_inner);
        waiting.bytes += bytes;
        waiting.orders.push_back(order);
        self.shared.changed.notify_all();
    }

    /// The next one that may begin; none where none may within `limit`, if that is given. [`Self::ended`] is called when it has ended.
    pub fn next(&self, limit: Option<Duration>) -> Option<Order> {
        let (waiting, changed) = (self.shared.lock(), &self.shared.changed);
        let mut order = None;
        let waits = |waiting: &mut Waiting| {
            order = waiting.begin();
            order.is_none()
        };
        let waiting = match limit {
            None => changed.wait_while(waiting, waits).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                changed.wait_timeout_while(waiting, limit, waits).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        drop(waiting);
        changed.notify_all();
        order
    }

    /// An order of this kernel has ended, and was answered.
    pub fn ended(&self, kernel: KernelName) {
        let mut waiting = self.shared.lock();
        waiting.under_way.retain(|of| *of != kernel);
        waiting.is_alone = false;
        drop(waiting);
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::Create;
    use super::MOST_WAITING;
    use super::ORDER_BYTES;
    use super::Order;
    use super::Orders;
    use crate::kernel::name::KernelName;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    fn name(handle: u64) -> KernelName {
        KernelName { root: 1, handle }
    }

    fn create(handle: u64, bytes: usize) -> Create {
        Create { kernel: name(handle), language: 1, entry: None, bytes: vec![7; bytes], alone: false }
    }

    fn destroy(handle: u64) -> Order {
        Order::Destroy { kernel: name(handle) }
    }

    /// What begins next: `c1` compiles kernel 1, `d1` destroys it, `b` begins.
    fn next(orders: &Orders) -> Option<String> {
        orders.next(NOW).map(|order| match order {
            Order::Create(create) => format!("c{}", create.kernel.handle),
            Order::Destroy { kernel } => format!("d{}", kernel.handle),
            Order::Begin => "b".to_owned(),
        })
    }

    #[test]
    fn orders_begin_as_they_came_and_none_where_none_is_given_in_time() {
        let orders = Orders::default();
        assert_eq!(next(&orders), None);
        [Order::Create(create(1, 3)), Order::Begin, destroy(2)]
            .into_iter()
            .for_each(|order| orders.give(order));
        assert_eq!(orders.next(None), Some(Order::Create(create(1, 3))));
        assert_eq!(orders.next(Some(Duration::MAX / 4)), Some(Order::Begin));
        assert_eq!(orders.next(None), Some(destroy(2)));
        assert_eq!(next(&orders), None);
    }

    #[test]
    fn what_comes_second_of_a_kernel_waits_for_what_came_first_of_it_and_holds_up_no_other() {
        let orders = Orders::default();
        let given = [Order::Create(create(1, 3)), destroy(1), Order::Create(create(1, 4)), destroy(2)];
        given.into_iter().for_each(|order| orders.give(order));
        let begun = [(); 3].map(|()| next(&orders));
        assert_eq!(begun, [Some("c1".to_owned()), Some("d2".to_owned()), None]);
        orders.ended(name(2));
        assert_eq!(next(&orders), None);
        for (ends, begins) in [(1, "d1"), (1, "c1")] {
            orders.ended(name(ends));
            assert_eq!((next(&orders), next(&orders)), (Some(begins.to_owned()), None));
        }
    }

    #[test]
    fn a_kernel_that_is_compiled_alone_has_nothing_beside_it() {
        let orders = Orders::default();
        let alone = |handle| Order::Create(Create { alone: true, ..create(handle, 3) });
        let given =
            [Order::Create(create(1, 3)), alone(2), alone(3), Order::Create(create(4, 3)), Order::Begin];
        given.into_iter().for_each(|order| orders.give(order));
        for (begins, handle) in [("c1", 1), ("c2", 2), ("c3", 3)] {
            assert_eq!((next(&orders), next(&orders)), (Some(begins.to_owned()), None));
            orders.ended(name(handle));
        }
        assert_eq!([next(&orders), next(&orders)], [Some("c4".to_owned()), Some("b".to_owned())]);
    }

    #[test]
    fn one_that_is_to_be_alone_waits_behind_one_that_waits() {
        let orders = Orders::default();
        let alone = Order::Create(Create { alone: true, ..create(2, 3) });
        [Order::Create(create(1, 3)), destroy(1), alone].into_iter().for_each(|order| orders.give(order));
        for begins in ["c1", "d1", "c2"] {
            assert_eq!((next(&orders), next(&orders)), (Some(begins.to_owned()), None));
            orders.ended(name(1));
        }
    }

    #[test]
    fn a_thread_that_waits_is_woken_by_an_end_that_lets_an_order_begin() {
        let orders = Orders::default();
        [destroy(1), destroy(1)].into_iter().for_each(|order| orders.give(order));
        assert_eq!(orders.next(None), Some(destroy(1)));
        thread::scope(|scope| {
            let second = scope.spawn(|| orders.next(None));
            orders.ended(name(1));
            assert_eq!(second.join().unwrap(), Some(destroy(1)));
        });
    }

    #[test]
    fn what_is_beyond_the_bound_waits_until_there_is_room_and_one_alone_never_does() {
        let orders = Orders::default();
        let (giver, (large_tx, large)) = (orders.clone(), mpsc::channel());
        let _giver = thread::spawn(move || {
            giver.give(Order::Create(create(1, MOST_WAITING)));
            large_tx.send(())
        });
        large.recv_timeout(Duration::from_secs(30)).expect("one alone does not wait");
        assert_eq!(orders.next(None), Some(Order::Create(create(1, MOST_WAITING))), "larger than all of it");
        let fills = || create(2, MOST_WAITING - ORDER_BYTES);
        orders.give(Order::Create(fills()));
        let (given_tx, given) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                orders.give(Order::Begin);
                given_tx.send(()).unwrap();
            });
            assert_eq!(given.try_recv(), Err(mpsc::TryRecvError::Empty), "nothing takes no room");
            assert_eq!(orders.next(None), Some(Order::Create(fills())));
            given.recv().unwrap();
        });
        assert_eq!(orders.shared.lock().bytes, ORDER_BYTES);
        assert_eq!(orders.next(None), Some(Order::Begin));
        assert_eq!(orders.shared.lock().bytes, 0);
    }
}
