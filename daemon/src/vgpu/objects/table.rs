//! Objects by handle.

use std::marker::PhantomData;

use campanile_protocol::handle::Handle;

use super::budget::Charge;
use super::ids::Name;

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    /// The object that lives there, and what was charged for it.
    object: Option<(T, Charge)>,
}

/// Objects of one kind of one guest process, by names of that kind. A name kept too long names nothing.
#[derive(Debug)]
pub struct Table<T, N = Handle> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    limit: u32,
    /// All generations are greater.
    base: u32,
    names: PhantomData<fn() -> N>,
}

impl<T, N: Name> Table<T, N> {
    /// An empty table of at most `limit` objects (MCDM-06).
    pub fn new(limit: u32) -> Self {
        Self::after(limit, 0)
    }

    /// As [`Self::new`], with no handle that a table had whose [`Self::last_generation`] was `base` or less.
    pub fn after(limit: u32, base: u32) -> Self {
        Self { places: Vec::new(), free: Vec::new(), limit, base, names: PhantomData }
    }

    /// The greatest generation of a handle so far; that of its predecessors where there was none.
    pub fn last_generation(&self) -> u32 {
        self.places.iter().map(|place| place.generation).max().unwrap_or(self.base)
    }

    /// Adds an object, with what was charged for it; `None` when the table is full.
    pub fn insert(&mut self, object: T, charge: Charge) -> Option<N> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.places.len()).ok().filter(|index| *index < self.limit)?;
                self.places.push(Place { generation: self.base, object: None });
                index
            }
        };
        let place = self.places.get_mut(index as usize)?;
        place.generation = place.generation.wrapping_add(1).max(1);
        place.object = Some((object, charge));
        Some(N::of(Handle::new(index, place.generation)))
    }

    /// Whether one more fits.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() || self.places.len() < self.limit as usize
    }

    /// The object of a handle.
    pub fn get(&self, name: N) -> Option<&T> {
        let handle = name.handle();
        let place = self.places.get(handle.index() as usize)?;
        place.object.as_ref().filter(|_| place.generation == handle.generation()).map(|(object, _)| object)
    }

    /// The object of a handle, to change.
    pub fn get_mut(&mut self, name: N) -> Option<&mut T> {
        let handle = name.handle();
        let place = self.places.get_mut(handle.index() as usize)?;
        let generation = place.generation;
        place.object.as_mut().filter(|_| generation == handle.generation()).map(|(object, _)| object)
    }

    /// Takes an object out.
    pub fn remove(&mut self, name: N) -> Option<T> {
        self.get(name)?;
        let handle = name.handle();
        let object = self.places.get_mut(handle.index() as usize)?.object.take();
        self.free.push(handle.index());
        object.map(|(object, _)| object)
    }

    /// All objects with their handles.
    pub fn iter(&self) -> impl Iterator<Item = (N, &T)> {
        (0u32..).zip(&self.places).filter_map(|(index, place)| {
            place.object.as_ref().map(|(object, _)| (N::of(Handle::new(index, place.generation)), object))
        })
    }

    /// All objects with their handles, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (N, &mut T)> {
        (0u32..).zip(&mut self.places).filter_map(|(index, place)| {
            let handle = N::of(Handle::new(index, place.generation));
            place.object.as_mut().map(|(object, _)| (handle, object))
        })
    }

    /// Every place that was ever used: the generation of what lives or lived there, and what lives there.
    pub fn places(&self) -> impl Iterator<Item = (u32, Option<&T>)> {
        self.places.iter().map(|place| (place.generation, place.object.as_ref().map(|(object, _)| object)))
    }

    /// From [`Self::places`] of another table of at most `limit` objects. `None` where they are more, or where a
    /// generation cannot be.
    pub fn from_places(limit: u32, places: Vec<(u32, Option<(T, Charge)>)>) -> Option<Self> {
        let fits = places.len() <= limit as usize && places.iter().all(|(generation, _)| *generation > 0);
        let places: Vec<Place<T>> =
            places.into_iter().map(|(generation, object)| Place { generation, object }).collect();
        let free = (0u32..).zip(&places).filter(|(_, place)| place.object.is_none());
        let free = free.map(|(index, _)| index).collect();
        fits.then_some(Self { places, free, limit, base: 0, names: PhantomData })
    }

    /// What was charged for its objects.
    pub fn into_charges(self) -> impl Iterator<Item = Charge> {
        self.places.into_iter().filter_map(|place| place.object.map(|(_, charge)| charge))
    }

    /// All handles.
    pub fn handles(&self) -> Vec<N> {
        self.iter().map(|(handle, _)| handle).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use campanile_protocol::handle::Handle;

    use super::Table;
    use crate::vgpu::objects::budget::Budget;
    use crate::vgpu::objects::budget::Charge;
    use crate::vgpu::objects::budget::Kind;

    fn charge() -> Charge {
        Arc::new(Budget::default()).vm().charge(Kind::Objects, 1).unwrap()
    }

    #[test]
    fn ums_80_a_handle_of_a_dead_object_names_nothing() {
        let mut table: Table<_> = Table::new(1);
        let first = table.insert("first", charge()).unwrap();
        assert!(table.insert("too many", charge()).is_none());
        assert_eq!(table.remove(first), Some("first"));
        assert_eq!(table.remove(first), None);
        let second = table.insert("second", charge()).unwrap();
        assert_eq!(second.index(), first.index());
        assert_eq!(table.get(first), None);
        assert_eq!(table.get(second), Some(&"second"));
        assert_eq!(table.get(Handle::NONE), None);
    }

    #[test]
    fn ums_80_a_table_that_follows_another_has_none_of_its_handles() {
        let mut table: Table<_> = Table::new(2);
        let first = table.insert(1, charge()).unwrap();
        table.remove(first);
        let handles = [table.insert(2, charge()).unwrap(), table.insert(3, charge()).unwrap()];
        let mut next: Table<_> = Table::after(2, table.last_generation());
        assert_eq!(next.last_generation(), 2);
        for handle in [first, handles[0], handles[1]] {
            assert_eq!(next.get(handle), None);
        }
        let later = [next.insert(4, charge()).unwrap(), next.insert(5, charge()).unwrap()];
        assert!(later.iter().all(|handle| ![first, handles[0], handles[1]].contains(handle)));
        assert_eq!(later.map(|handle| next.get(handle).copied()), [Some(4), Some(5)]);
    }
}
