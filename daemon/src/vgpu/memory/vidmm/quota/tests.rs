//! Tests of quotas.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;

use super::Account;
use super::Budget;
use super::Pool;
use super::Quota;
use super::QuotaError;
use super::Watcher;

fn pair(total: u64, quotas: [Quota; 2]) -> [Account; 2] {
    let pool = Pool::new(Some(total), quotas.map(|quota| quota.min)).unwrap();
    quotas.map(|quota| Account::new(quota, Arc::clone(&pool)))
}

#[test]
fn a_minimum_that_changes_is_taken_of_the_host_beyond_what_is_allocated() {
    let quota = |min, max| Quota { min, max };
    let [a, b] = pair(100, [quota(10, 100), quota(20, 100)]);
    a.commit(30).unwrap();
    assert_eq!(b.budget(), Budget { committed: 0, available: 70 });
    a.set_min(25).unwrap();
    assert_eq!(b.budget().available, 70, "its minimum is within what it has");
    a.set_min(60).unwrap();
    assert_eq!((b.budget().available, a.budget().available), (40, 50));
    assert_eq!(a.set_min(90), Err(QuotaError::Host { wanted: 30, left: 20 }));
    assert_eq!(a.set_min(101), Err(QuotaError::Vgpu { wanted: 101, left: 100, max: 100 }));
    assert_eq!(a.quota(), quota(60, 100), "nothing was changed");
    a.set_min(0).unwrap();
    assert_eq!((b.budget().available, a.budget().available), (70, 50));
    a.release(30);
    assert_eq!((b.budget().available, a.budget().available), (100, 80));
    // All that it may have can be its minimum.
    let [whole, other] = pair(200, [quota(10, 100), quota(20, 100)]);
    whole.set_min(100).unwrap();
    assert_eq!((whole.quota(), other.budget().available), (quota(100, 100), 100));
}

#[test]
fn a_minimum_is_there_whatever_others_take() {
    let [a, b] = pair(100, [Quota { min: 30, max: 200 }, Quota { min: 20, max: 50 }]);
    a.commit(80).unwrap();
    assert_eq!(a.commit(1), Err(QuotaError::Host { wanted: 1, left: 0 }));
    assert_eq!(b.budget().available, 20);
    assert_eq!(b.commit(21), Err(QuotaError::Host { wanted: 21, left: 20 }));
    b.commit(20).unwrap();
    a.release(10);
    assert_eq!(b.budget().available, 10);
    b.commit(10).unwrap();
    a.release(70);
    assert_eq!(b.commit(21), Err(QuotaError::Vgpu { wanted: 21, left: 20, max: 50 }));
    assert_eq!(a.budget().available, 70);
}

#[test]
fn sums_that_overflow_are_refused() {
    let [a, _] = pair(u64::MAX, [Quota { min: 0, max: u64::MAX }, Quota { min: 0, max: 1 }]);
    a.commit(u64::MAX).unwrap();
    assert!(a.commit(1).is_err());
    assert!(a.commit(u64::MAX).is_err());
    assert!(Pool::new(Some(u64::MAX), [u64::MAX, 1]).is_ok(), "a sum past the end is the end");
    assert!(Pool::new(Some(10), [6, 5]).is_err());
}

/// How often watchers are told of each of these changes: bytes allocated, or freed where negative.
fn told(pool: &Arc<Pool>, account: &Account, changes: &[i64]) -> Vec<u64> {
    let count = Arc::new(AtomicU64::new(0));
    let its = Arc::clone(&count);
    let watcher: Arc<Watcher> = Arc::new(move || {
        its.fetch_add(1, Ordering::Relaxed);
    });
    pool.watch(&watcher);
    let change = |bytes: &i64| {
        match u64::try_from(*bytes) {
            Ok(bytes) => account.commit(bytes).unwrap(),
            Err(_) => account.release(bytes.unsigned_abs()),
        }
        count.swap(0, Ordering::Relaxed)
    };
    changes.iter().map(change).collect()
}

#[test]
fn watchers_are_told_when_what_is_left_for_all_passes_a_step_and_at_no_other_time() {
    let quota = Quota { min: 50, max: u64::MAX };
    let of = |total: Option<u64>| {
        let pool = Pool::new(total, [quota.min]).unwrap();
        let account = Account::new(quota, Arc::clone(&pool));
        assert_eq!(account.quota(), quota);
        (pool, account)
    };
    // 64 steps of 100 bytes, beside the minimum.
    let (pool, account) = of(Some(6450));
    let changes = [50, 1, 98, 1, 1, -1, -1, -99, -50];
    assert_eq!(told(&pool, &account, &changes), [0, 1, 0, 0, 1, 1, 0, 1, 0]);
    // A byte is the shortest step.
    let (pool, account) = of(Some(60));
    assert_eq!(told(&pool, &account, &[50, 1, 9, -10]), [0, 1, 1, 1]);
    let (pool, account) = of(None);
    assert_eq!(told(&pool, &account, &[50, 1 << 40, -50]), [0, 0, 0]);
    assert_eq!(account.budget(), Budget { committed: 1 << 40, available: u64::MAX - (1 << 40) });
}

#[test]
fn many_threads_never_get_more_than_there_is() {
    let accounts = Arc::new(pair(1000, [Quota { min: 100, max: 900 }, Quota { min: 50, max: 700 }]));
    let workers: Vec<_> = (0..8)
        .map(|worker: usize| {
            let accounts = Arc::clone(&accounts);
            thread::spawn(move || {
                let account = &accounts[worker % 2];
                let mut held = Vec::new();
                for round in 0..20_000u64 {
                    let bytes = round.wrapping_mul(2_654_435_761) % 97 + 1;
                    if account.commit(bytes).is_ok() {
                        held.push(bytes);
                    }
                    let [a, b] = accounts.each_ref().map(|account| account.budget().committed);
                    assert!(a <= 900 && b <= 700, "{a} and {b}");
                    if round % 3 != 0 {
                        held.pop().into_iter().for_each(|bytes| account.release(bytes));
                    }
                }
                held.into_iter().for_each(|bytes| account.release(bytes));
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    let [a, b] = accounts.each_ref().map(Account::budget);
    assert_eq!((a.committed, a.available), (0, 900));
    assert_eq!((b.committed, b.available), (0, 700));
    accounts[0].commit(900).unwrap();
    assert_eq!(accounts[1].budget().available, 100, "no byte was lost");
}

#[test]
fn a_vgpu_that_comes_takes_its_minimum_and_one_that_goes_gives_all_back() {
    let quota = |min| Quota { min, max: 100 };
    let [a, _b] = pair(100, [quota(10), quota(20)]);
    let pool = Arc::clone(&a.pool);
    a.commit(40).unwrap();
    let too_much = QuotaError::Host { wanted: 41, left: 40 };
    assert_eq!(Account::open(quota(41), &pool).unwrap_err(), too_much);
    let c = Account::open(quota(35), &pool).unwrap();
    assert_eq!(a.budget().available, 5);
    c.commit(38).unwrap();
    assert_eq!(a.budget().available, 2);
    c.close();
    assert_eq!((a.budget().available, c.budget()), (40, Budget { committed: 0, available: 0 }));
    assert!(c.commit(1).is_err(), "it is closed");
    c.close();
    drop(c);
    assert_eq!(a.budget().available, 40, "once");
    drop(Account::open(quota(35), &pool).unwrap());
    assert_eq!(a.budget().available, 40, "one that was never closed");
}

#[test]
fn a_watcher_that_is_gone_is_forgotten() {
    let pool = Pool::new(Some(100), []).unwrap();
    for _ in 0..10 {
        let watcher: Arc<Watcher> = Arc::new(|| ());
        pool.watch(&watcher);
    }
    assert_eq!(pool.watchers.lock().unwrap().len(), 1, "the last, of which nothing was to be told yet");
    let kept = [(); 2].map(|()| {
        let watcher: Arc<Watcher> = Arc::new(|| ());
        pool.watch(&watcher);
        watcher
    });
    assert_eq!(pool.watchers.lock().unwrap().len(), kept.len(), "and those that are there are not");
}
